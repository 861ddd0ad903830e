//! Adversary, faulty disks, simulator and reference models.
