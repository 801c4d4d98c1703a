use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

/// # Safety
/// The pointer is valid.
#[distributed_lock(key = "a")]
pub async unsafe fn read(pointer: *const u8) -> Result<u8, OrderError> {
    Ok(unsafe { *pointer })
}
