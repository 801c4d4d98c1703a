//! Wake-ups: a subscription on a connection of its own, opened while somebody waits.
//!
//! The script that releases a key publishes when others wait for it, or when it passes the row on. A waiter
//! that misses a message polls again within a second.

use std::convert::Infallible;
use std::time::Duration;

use dblock_core::Key;
use dblock_core::store::{StoreError, StoreErrorKind, WakeUp};
use futures_util::StreamExt as _;
use redis::RedisResult;
use redis::aio::PubSub;
use tokio::time::timeout;
use uuid::Uuid;

use crate::error;
use crate::script::TOKEN;

/// After this long without a message, a ping checks whether the server is still there.
const QUIET: Duration = Duration::from_secs(30);

/// Time limit of an answer on this connection.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Reports what is published on `channel` until the connection is lost, and why it was.
pub(crate) async fn listen(
    mut subscription: PubSub,
    channel: &str,
    tell: &(dyn Fn(WakeUp) + Send + Sync),
) -> Result<Infallible, StoreError> {
    in_time(subscription.subscribe(channel)).await?;
    let (mut asks, mut messages) = subscription.split();
    tell(WakeUp::Listening);
    loop {
        match timeout(QUIET, messages.next()).await {
            Ok(Some(message)) => wake_up(message.get_payload_bytes()).into_iter().for_each(tell),
            Ok(None) => {
                let message = "the connection that listens for releases was closed";
                return Err(StoreError::new(StoreErrorKind::Interrupted, message));
            }
            Err(_) => in_time(asks.ping::<redis::Value>()).await.map(drop)?,
        }
    }
}

async fn in_time<T>(asked: impl Future<Output = RedisResult<T>>) -> Result<T, StoreError> {
    match timeout(TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(error::of_call),
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Interrupted,
            format!("the server did not answer the connection that listens for releases within {TIMEOUT:?}"),
        )),
    }
}

/// Reads a message: `r` and the key; `p`, the lease, its token and the key; or `s`, how many share the key, the lease that
/// comes first, which may be nil, for how many µs it has waited, and the key.
///
/// Every user of the server who may publish can send messages. One that cannot be read is ignored, and a
/// forged release only makes waiters ask. A forged pass-on would let the successor enter beside the holder,
/// but it must name the successor's lease, which only users who may read the rows can know.
fn wake_up(message: &[u8]) -> Option<WakeUp> {
    let key = |bytes| Key::new(None, str::from_utf8(bytes).ok()?).ok();
    match message.split_first()? {
        (b'r', freed) => key(freed).map(WakeUp::Released),
        (b'p', rest) => {
            let (lease, rest) = rest.split_at_checked(size_of::<Uuid>())?;
            let (token, passed_on) = rest.split_at_checked(TOKEN)?;
            let token = str::from_utf8(token).ok()?.parse().ok()?;
            Some(WakeUp::passed_on(
                key(passed_on)?,
                Uuid::from_slice(lease).ok()?,
                token,
            ))
        }
        (b's', rest) => {
            let (inside, rest) = rest.split_first_chunk()?;
            let (next, rest) = rest.split_first_chunk()?;
            let (waited, shared) = rest.split_first_chunk()?;
            let waited = Duration::from_micros(u64::from_le_bytes(*waited));
            let next = Some((Uuid::from_bytes(*next), waited)).filter(|(lease, _)| !lease.is_nil());
            Some(WakeUp::may_enter(key(shared)?, u32::from_le_bytes(*inside), next))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_or_ignored() {
        let (key, lease) = (Key::new(None, "lé k").unwrap(), Uuid::now_v7());
        assert_eq!(wake_up("rlé k".as_bytes()), Some(WakeUp::Released(key.clone())));
        let message =
            |token: &str| [b"p", &lease.as_bytes()[..], token.as_bytes(), "lé k".as_bytes()].concat();
        assert_eq!(
            wake_up(&message("9223372036854775807")),
            Some(WakeUp::passed_on(key.clone(), lease, i64::MAX))
        );
        let waited = Duration::from_micros(9);
        for (next, bytes) in [(None, Uuid::nil()), (Some((lease, waited)), lease)] {
            let (inside, waited) = (7_u32.to_le_bytes(), 9_u64.to_le_bytes());
            let message = [b"s", &inside[..], bytes.as_bytes(), &waited, "lé k".as_bytes()].concat();
            assert_eq!(wake_up(&message), Some(WakeUp::may_enter(key.clone(), 7, next)));
        }
        for other in [
            &message("9223372036854775808")[..],
            &message("00"),
            b"",
            b"r",
            b"p",
            b"k",
            b"r\xff",
        ] {
            assert_eq!(wake_up(other), None, "{other:?}");
        }
    }
}
