use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "order:{id}", tx = note)]
async fn settle(id: u64, note: &mut String) -> Result<(), OrderError> {
    note.push('!');
    Ok(())
}

fn main() {
    // One mistake is one error: the function is still there.
    let _ = settle;
}
