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
        let of = |seat: usize| &self.target.proxies[seat][..];
        match *fault {
            Fault::Cut { seat, ms } => disturb(of(seat), Traffic::Refused, ms).await,
            Fault::CutAll { ms } => disturb(self.target.proxies.iter().flatten(), Traffic::Refused, ms).await,
            Fault::BlackHole { seat, ms } => disturb(of(seat), Traffic::BlackHole, ms).await,
            Fault::Deaf { seat, ms } => disturb(of(seat), Traffic::Deaf, ms).await,
            Fault::Slow { seat, delay, ms } => disturb(of(seat), Traffic::Slow(millis(delay)), ms).await,
            Fault::LoseReply { seat } => play(of(seat), Trick::LoseReply).await,
            Fault::LoseRequest { seat } => play(of(seat), Trick::LoseRequest).await,
            Fault::DeliverLate { seat, ms } => {
                let played = play(of(seat), Trick::DeliverLate).await;
                if played {
                    sleep(millis(ms)).await;
                    for proxy in of(seat) {
                        proxy.deliver().await;
                    }
                }
                played
            }
            _ => unreachable!("not a fault of the network"),
        }
    }
}

/// Two disturbances of one proxy may overlap; the end of the first then ends the second.
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

/// Plays a trick on the next lock statement of a process, through whichever of its proxies: one that names a
/// key of ours.
async fn play(proxies: &[Proxy], trick: Trick) -> bool {
    let played = || proxies.iter().map(Proxy::played).sum::<usize>();
    let before = played();
    for proxy in proxies {
        proxy.look_out(
            trick,
            Box::new(|bytes| bytes.windows(8).any(|window| window == b"torture:")),
        );
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
