//! A recorder of metrics that is there for some subjects and not for others. The facade takes one for the
//! whole process, and dblock asks it for its handles when a manager is built and when a function first takes
//! a lock: so the switch is set before that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

static RECORDS: AtomicBool = AtomicBool::new(false);
static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// The buckets that docs/operations.md recommends.
const SECONDS: [f64; 16] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

struct Switched(PrometheusRecorder);

/// Whether what opens from now on is recorded. Call it before each subject.
pub(crate) fn switch(records: bool) -> anyhow::Result<()> {
    RECORDS.store(records, Ordering::SeqCst);
    if let Some(handle) = HANDLE.get() {
        // As a scrape does: else the samples pile up.
        handle.run_upkeep();
        return Ok(());
    }
    let recorder = PrometheusBuilder::new().set_buckets(&SECONDS)?.build_recorder();
    HANDLE.get_or_init(|| recorder.handle());
    metrics::set_global_recorder(Switched(recorder))
        .ok()
        .context("there is another recorder")
}

fn when_on<T>(on: impl FnOnce() -> T, off: impl FnOnce() -> T) -> T {
    if RECORDS.load(Ordering::SeqCst) {
        on()
    } else {
        off()
    }
}

impl Recorder for Switched {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.0.describe_counter(key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.0.describe_gauge(key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.0.describe_histogram(key, unit, text);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        when_on(|| self.0.register_counter(key, metadata), Counter::noop)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        when_on(|| self.0.register_gauge(key, metadata), Gauge::noop)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        when_on(|| self.0.register_histogram(key, metadata), Histogram::noop)
    }
}
