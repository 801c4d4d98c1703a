//! The macro cannot depend on the runtime, so its limits are written twice. They must agree.

use crate::{duration, template, values};

#[test]
fn compile_time_limits_are_those_of_the_runtime() {
    assert_eq!(duration::MIN_TTL, dblock::LockOptions::MIN_TTL);
    assert_eq!(duration::MAX, dblock::LockOptions::MAX_DURATION);
    assert_eq!(template::MAX_KEY_BYTES, dblock::Key::MAX_BYTES);
    assert_eq!(values::MAX_KEYS, dblock::LockManager::MAX_KEYS);
}
