"""The laboratory: what emulates networks, trains models, measures, and reproduces the papers.

It imports the product (all of ``netoffload`` outside this folder, the NIC's process, the MPI extension). The product
never imports it, so what runs on other people's machines is small enough to read. The program works without this
folder: then it has the product's commands only (``netoffload.cli.known``).

::

    testbed   a plan of nodes -> namespaces, shaped links, NICs, and ranks on them
    machine   the CPU and the commit that records name
    units     rates, clocks and times as people write them
    declared  fields that declare: settings -> options and help, findings -> JSON and tables
    models    the time of an exchange, and what follows from it; the papers' cost models; the codecs as circuits
    results   the home of records, in the present format and in older ones
    reports   records -> tables and figures
    training  one run = configuration in, record out
    bench     experiments that measure, and check what they time
    papers    the papers' tables and figures beside those of this project
    cli       the commands
"""
