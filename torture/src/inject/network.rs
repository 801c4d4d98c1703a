//! Faults of the network between a process and the server.

use std::time::Duration;

use dblock_tests::proxy::{Proxy, Traffic, Trick};
use tokio::time::sleep;

use super::{Injector, millis};
use crate::fault::Fault;

/// How long a trick waits for a statement to be played on.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Injector<'_> {
    pub(super) async fn on_network(&self, fault: &Fault) -> bool {
        let proxy = |seat: usize| &self.target.proxies[seat];
        match *fault {
            Fault::Cut { seat, ms } => disturb(&[proxy(seat)], Traffic::Refused, ms).await,
            Fault::CutAll { ms } => {
                let all: Vec<_> = self.target.proxies.iter().collect();
                disturb(&all, Traffic::Refused, ms).await
            }
            Fault::BlackHole { seat, ms } => disturb(&[proxy(seat)], Traffic::BlackHole, ms).await,
            Fault::Deaf { seat, ms } => disturb(&[proxy(seat)], Traffic::Deaf, ms).await,
            Fault::Slow { seat, delay, ms } => {
                disturb(&[proxy(seat)], Traffic::Slow(millis(delay)), ms).await
            }
            Fault::LoseReply { seat } => play(proxy(seat), Trick::LoseReply).await,
            Fault::LoseRequest { seat } => play(proxy(seat), Trick::LoseRequest).await,
            Fault::DeliverLate { seat, ms } => {
                let played = play(proxy(seat), Trick::DeliverLate).await;
                if played {
                    sleep(millis(ms)).await;
                    proxy(seat).deliver().await;
                }
                played
            }
            _ => unreachable!("not a fault of the network"),
        }
    }
}

/// Two disturbances of one proxy may overlap; the end of the first then ends the second.
async fn disturb(proxies: &[&Proxy], traffic: Traffic, ms: u32) -> bool {
    for proxy in proxies {
        proxy.set(traffic);
    }
    sleep(millis(ms)).await;
    for proxy in proxies {
        proxy.set(Traffic::Flows);
    }
    true
}

/// Plays a trick on the next lock statement: one that names a key of ours.
async fn play(proxy: &Proxy, trick: Trick) -> bool {
    let before = proxy.played();
    proxy.look_out(
        trick,
        Box::new(|bytes| bytes.windows(8).any(|window| window == b"torture:")),
    );
    let give_up = tokio::time::Instant::now() + TIMEOUT;
    while tokio::time::Instant::now() < give_up {
        if proxy.played() > before {
            return true;
        }
        sleep(Duration::from_millis(2)).await;
    }
    proxy.look_away();
    proxy.played() > before
}
