//! Faults of the network between a process and the server.

use std::time::Duration;

use dblock_tests::proxy::{Proxy, Traffic, Trick};
use tokio::time::sleep;

use super::{Injector, millis};
use crate::fault::Fault;

/// How long a trick waits for a statement.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Injector<'_> {
    pub(super) async fn on_network(&self, fault: &Fault) -> bool {
        let of = |slot: usize| &self.target.proxies[slot][..];
        match *fault {
            Fault::Cut { slot, ms } => disturb(of(slot), Traffic::Refused, ms).await,
            Fault::CutAll { ms } => disturb(self.target.proxies.iter().flatten(), Traffic::Refused, ms).await,
            Fault::BlackHole { slot, ms } => disturb(of(slot), Traffic::BlackHole, ms).await,
            Fault::Deaf { slot, ms } => disturb(of(slot), Traffic::Deaf, ms).await,
            Fault::Slow { slot, delay, ms } => disturb(of(slot), Traffic::Slow(millis(delay)), ms).await,
            Fault::LoseReply { slot } => play(of(slot), Trick::LoseReply).await,
            Fault::LoseRequest { slot } => play(of(slot), Trick::LoseRequest).await,
            Fault::Repeat { slot, ms: None } => play(of(slot), Trick::Repeat).await,
            Fault::DeliverLate { slot, ms } => play_late(of(slot), Trick::DeliverLate, ms).await,
            Fault::Repeat { slot, ms: Some(ms) } => play_late(of(slot), Trick::RepeatLate, ms).await,
            _ => unreachable!("not a fault of the network"),
        }
    }
}

/// Of two disturbances that overlap at one proxy, the end of the first ends both.
async fn disturb<'a>(
    proxies: impl IntoIterator<Item = &'a Proxy> + Clone,
    traffic: Traffic,
    ms: u32,
) -> bool {
    for proxy in proxies.clone() {
        proxy.set(traffic);
    }
    sleep(millis(ms)).await;
    for proxy in proxies {
        proxy.set(Traffic::Flows);
    }
    true
}

/// Plays a trick, and delivers what was kept so much later.
async fn play_late(proxies: &[Proxy], trick: Trick, ms: u32) -> bool {
    let played = play(proxies, trick).await;
    if played {
        sleep(millis(ms)).await;
        for proxy in proxies {
            proxy.deliver().await;
        }
    }
    played
}

/// Whether a trick is played on these bytes: they name a key, which a batch of MySQL's has in hexadecimal digits, or commit a
/// transaction, whose reply is lost. A batch is not repeated.
fn is_meant(trick: Trick, bytes: &[u8]) -> bool {
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let repeats = matches!(trick, Trick::Repeat | Trick::RepeatLate);
    has(b"torture:") || !repeats && has(b"746F72747572653A") || trick == Trick::LoseReply && has(b"COMMIT")
}

/// Plays a trick on the next such statement of a process, at any of its proxies.
async fn play(proxies: &[Proxy], trick: Trick) -> bool {
    let played = || proxies.iter().map(Proxy::played).sum::<usize>();
    let before = played();
    for proxy in proxies {
        proxy.look_out(trick, Box::new(move |bytes| is_meant(trick, bytes)));
    }
    let give_up = tokio::time::Instant::now() + TIMEOUT;
    while played() == before && tokio::time::Instant::now() < give_up {
        sleep(Duration::from_millis(2)).await;
    }
    for proxy in proxies {
        proxy.look_away();
    }
    played() > before
}
