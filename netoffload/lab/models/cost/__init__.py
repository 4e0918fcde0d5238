"""The papers' performance models: pure functions of a few numbers, each with the equation that it comes from.

=============  ===================================================================================================
module         model
=============  ===================================================================================================
``exchange``   INCEPTIONN's alpha, beta and gamma (VIII-D): aggregators, rings, groups of rings, and compression
``terngrad``   TernGrad's throughput of a cluster (Appendix B, Eqs. 15-18)
``eight_bit``  Dettmers' speed-up on 4 and on 96 GPUs (sections 5.1 and 5.2), with the numbers of his tables
=============  ===================================================================================================

Times are seconds, sizes octets, rates octets per second. ``netoffload.lab.models.simulation`` runs the schedules of
``exchange`` event by event, and ``netoffload model scaling`` shows both.
"""
