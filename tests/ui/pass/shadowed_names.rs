// Nothing that the user calls as the standard library or dblock does gets in the way.
#![allow(unused)]

mod core {}
mod std {}
mod dblock {}

struct Result;
struct Option;
struct String;
struct Ok;
struct Err;
struct Some;
struct None;
struct LockOptions;
struct Duration;
struct Future;

macro_rules! format_args {
    () => {};
}
macro_rules! concat {
    () => {};
}
pub(crate) use {concat, format_args};

#[::dblock::distributed_lock(key = "{key}:{manager}:{options}:{output}:{error}", ttl = "3s", on_busy = ::std::result::Result::Ok(key))]
pub async fn names(
    key: u8,
    manager: u8,
    options: u8,
    output: u8,
    error: u8,
) -> ::std::result::Result<u8, ::dblock_ui_tests::OrderError> {
    ::std::result::Result::Ok(key + manager + options + output + error)
}
