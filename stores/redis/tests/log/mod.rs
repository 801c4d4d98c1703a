//! The lines that the store has logged.

use std::sync::{Mutex, Once};
use std::thread::{ThreadId, current};

use tracing::field::{Field, Visit};

/// The lines that each thread has logged about the primary.
static LOG: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

/// Notes lines of all threads, from before the first one: a subscriber of one thread would miss lines that
/// another thread logs for the first time just then.
pub(crate) struct Log;

impl Log {
    pub(crate) fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    }

    pub(crate) fn of_this_thread() -> Vec<String> {
        let log = LOG.lock().unwrap();
        let own = log.iter().filter(|(thread, _)| *thread == current().id());
        own.map(|(_, line)| line.clone()).collect()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("dblock_redis")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Line;

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            LOG.lock().unwrap().push((current().id(), format!("{value:?}")));
        }
    }
}
