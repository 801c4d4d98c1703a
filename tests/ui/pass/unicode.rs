use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "заказ:{номер}:🔒:{größe}")]
pub async fn рассчитать(номер: u64, größe: u8) -> Result<u64, OrderError> {
    Ok(номер + u64::from(größe))
}
