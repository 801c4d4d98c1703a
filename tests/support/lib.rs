//! What the tests share.

pub mod hot_account;
