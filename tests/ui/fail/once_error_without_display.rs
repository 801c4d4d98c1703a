use dblock::{LockError, run_once};

pub struct Failed;

impl From<LockError> for Failed {
    fn from(_: LockError) -> Self {
        Self
    }
}

#[run_once(key = "pay", remember = "1h", on_crash = "retry")]
async fn pay(id: u64) -> Result<u64, Failed> {
    Ok(id)
}

fn main() {
    let _ = pay;
}
