//! Trajectories as data: reading, auditing and building training rows.
