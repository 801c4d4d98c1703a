//! The suite that shows that a store keeps the contract of [`Store::apply`](crate::store::Store::apply).
pub mod open;
