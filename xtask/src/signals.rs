//! The signals that ask this program to end.

use std::future::poll_fn;
use std::task::Poll;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from its creation on, so that a signal never ends the program past its guards.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(StopSignal, Signal)>);

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Hangup,
    Interrupt,
    Terminate,
}

impl StopSignal {
    const ALL: [Self; 3] = [Self::Hangup, Self::Interrupt, Self::Terminate];

    fn kind(self) -> SignalKind {
        match self {
            Self::Hangup => SignalKind::hangup(),
            Self::Interrupt => SignalKind::interrupt(),
            Self::Terminate => SignalKind::terminate(),
        }
    }

    /// The exit code that a shell reports for a program that this signal ended: 128 plus its number.
    pub(crate) fn exit_code(self) -> u8 {
        u8::try_from(128 + self.kind().as_raw_value()).unwrap_or(u8::MAX)
    }
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        StopSignal::ALL
            .into_iter()
            .map(|stop| Ok((stop, signal(stop.kind())?)))
            .collect::<std::io::Result<_>>()
            .map(Self)
            .context("cannot listen for signals")
    }

    /// The next signal. Says on stderr that it came, because stopping can take some seconds.
    pub(crate) async fn next(&mut self) -> StopSignal {
        let stop = poll_fn(|context| {
            for (stop, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*stop);
                }
            }
            Poll::Pending
        })
        .await;
        eprintln!("\n{stop:?} signal: stopping what was started");
        stop
    }
}

#[cfg(test)]
mod tests {
    use super::StopSignal;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(StopSignal::ALL.map(StopSignal::exit_code), [129, 130, 143]);
    }
}
