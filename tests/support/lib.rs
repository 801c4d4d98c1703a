//! What the tests share.

pub mod faulty_store;
pub mod line;
pub mod own_server;
pub mod proxy;
