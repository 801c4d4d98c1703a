use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

pub struct Kind {
    pub r#type: u8,
}

#[distributed_lock(key = "{type}:{r#type}:{r#match.r#type}")]
pub async fn r#loop(r#type: u8, r#match: Kind) -> Result<u8, OrderError> {
    Ok(r#type + r#match.r#type)
}

pub struct Event {
    pub r#type: u64,
}

impl Event {
    pub fn r#move(&self) -> u64 {
        self.r#type
    }
}

#[distributed_lock(key = "{event.type}:{event.r#type}:{event.move()}")]
pub async fn fields(event: &Event) -> Result<(), OrderError> {
    Ok(())
}
