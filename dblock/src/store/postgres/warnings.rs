//! Receives the server's warnings.
//!
//! One of them matters: that somebody cancelled the wait of the commit that was just answered for its standby.
//! sqlx reports warnings to `tracing` only, so a subscriber of ours receives them while a statement is polled.
//! Their texts are translated, so any warning counts.
//!
//! That has a price for the program: sqlx's other events of that time are lost, each call site of `tracing`
//! asks anew whether it is wanted, and `tracing` without a subscriber no longer writes to the facade `log`. So
//! it is done only if commits wait for a standby.

use std::cell::RefCell;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::OnceLock;

use tracing::field::{Field, Visit};
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, dispatcher, span};

/// The target of sqlx's events for messages of the server.
const TARGET: &str = "sqlx::postgres::notice";

thread_local! {
    /// The server's warning while the current statement was polled.
    static HEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Awaits a statement. Returns its answer, and whether the server warned. That is always true if the program was
/// built without `tracing`'s warnings.
pub(super) async fn heard_during<T>(statement: impl Future<Output = T>) -> (T, bool) {
    let mut statement = pin!(statement);
    let mut warned = STATIC_MAX_LEVEL < LevelFilter::WARN;
    let answer = poll_fn(|context| {
        let polled = dispatcher::with_default(ear(), || statement.as_mut().poll(context));
        if let Some(message) = HEARD.take() {
            warned = true;
            tracing::warn!("PostgreSQL warns: {message}");
        }
        polled
    });
    (answer.await, warned)
}

/// One for all statements: each new subscriber makes `tracing` ask all call sites anew.
fn ear() -> &'static Dispatch {
    static EAR: OnceLock<Dispatch> = OnceLock::new();
    EAR.get_or_init(|| Dispatch::new(Ear))
}

/// A subscriber to the server's warnings.
struct Ear;

impl Ear {
    fn hears(metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET && *metadata.level() <= Level::WARN
    }
}

impl Subscriber for Ear {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::hears(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Self::hears(metadata)
    }

    /// Keeps events below warnings cheap.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Notes the text of an event.
struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            HEARD.set(Some(format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
