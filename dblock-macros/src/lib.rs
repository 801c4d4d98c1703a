//! The `#[distributed_lock]` attribute of dblock.
