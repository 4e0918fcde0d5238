"""The machine under a program: what it has and lacks, and what a measurement must say of it.

``doctor``       kernel objects, limits, CPU features and packages, found out by trying
``environment``  versions of programs and packages, which records name
"""
