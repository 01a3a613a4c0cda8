"""Swarms of seeds on virtual time: each seed is a cluster, a storm of faults, and a calm in which it must recover.

Read in this order: `scenario` (one seed as data), `clients`, `node_voter` (a server on a machine), `watch` (rules after
every event), `world` (plays a scenario), `acts` (effects of its cards), `judging` (rules at the end), `work` (seeds as
tasks of Spark, and coverage), `swarm` (progress, and shrinking of failures).
"""
