#![no_implicit_prelude]

#[::dblock::distributed_lock(key = "a:{id}", ttl = "10s", wait = "1s", max_hold = "20s", on_lost = "signal")]
pub async fn plain(id: u8) -> ::std::result::Result<u8, ::dblock_ui_tests::OrderError> {
    ::std::result::Result::Ok(id)
}

#[::dblock::distributed_lock(key = "a:{id}", on_busy = id, on_error = |_| 0)]
pub async fn handled(id: u8) -> u8 {
    id
}
