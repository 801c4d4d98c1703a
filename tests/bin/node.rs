//! A node that leads when it can: `node <url> <table> <key> <ttl in ms>`.
//!
//! As long as it leads it prints `<fence token> <time>` every few milliseconds. Times are ns on the monotonic
//! clock that all processes of the host share. It reads two commands from its standard input, `step down` and
//! `shut down`, and ends when that closes.

use std::io::BufRead as _;
use std::sync::Arc;
use std::time::Duration;

use dblock::{CurrentLock, LockManager, LockOptions};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::time::sleep;

/// How often a leader says that it leads.
const BEAT: Duration = Duration::from_millis(5);

/// Far longer than a leader needs to step down.
const GRACE: Duration = Duration::from_mins(1);

#[tokio::main]
async fn main() {
    let [_, url, table, key, ttl] = std::env::args()
        .collect::<Vec<_>>()
        .try_into()
        .expect("arguments");
    let options = LockOptions::new().ttl(Duration::from_millis(ttl.parse().expect("a number")));
    let locks = LockManager::builder_for_url(&url).expect("a URL").table(table);
    let locks = locks.build().await.expect("a manager");
    let (step_down, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    listen_for_orders([
        ("step down", Arc::clone(&step_down)),
        ("shut down", Arc::clone(&stop)),
    ]);

    let leads = async {
        loop {
            let term = locks.lock(&key).options(&options).lead(async |leader| {
                loop {
                    beat(&leader);
                    tokio::select! {
                        () = step_down.notified() => break,
                        () = locks.shutting_down() => break,
                        () = sleep(BEAT) => {}
                    }
                }
            });
            match term.await {
                Ok(()) => {}
                Err(error) if error.is_shutdown() => break,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let shutdown = async {
        stop.notified().await;
        locks.shutdown(GRACE).await;
    };
    tokio::join!(leads, shutdown);
}

/// Says that the node leads. The lease still lives after the time was taken, so it did at that time, wherever
/// the process was stopped meanwhile.
fn beat(leader: &CurrentLock) {
    let now = clock_gettime(ClockId::Monotonic);
    if !leader.remaining().is_zero() {
        println!(
            "{} {}",
            leader.fence_token(),
            now.tv_sec * 1_000_000_000 + now.tv_nsec
        );
    }
}

/// Passes orders on until standard input closes. Then nobody is interested in this process.
fn listen_for_orders(orders: [(&'static str, Arc<Notify>); 2]) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let order = orders.iter().find(|(order, _)| *order == line);
            order.expect("a known order").1.notify_one();
        }
        std::process::exit(1);
    });
}
