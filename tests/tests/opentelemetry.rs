//! The spans and the metrics of locks, as OpenTelemetry has them.
//!
//! One test in a process of its own: another one beside it without a subscriber would switch spans off, and a recorder
//! is for a whole process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::MemoryStore;
use dblock::store::clock::Timestamp;
use dblock::{LockManager, LockOptions};
use metrics_opentelemetry::{OpenTelemetryMetrics, OpenTelemetryRecorder};
use opentelemetry::Value;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{Status, TracerProvider as _};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, HistogramDataPoint, MetricData, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::time::sleep;
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

const WAIT: Duration = Duration::from_secs(20);

fn attribute<'s>(span: &'s SpanData, name: &str) -> Option<&'s Value> {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| &attribute.value)
}

fn text(span: &SpanData, name: &str) -> Option<String> {
    attribute(span, name).map(ToString::to_string)
}

#[tokio::test]
async fn opentelemetry_gets_spans_and_metrics() {
    metrics_go_through_the_facade().await;
    the_wait_is_a_child_of_the_callers_span().await;
}

/// One span an acquire: the wait is a child of the caller's span, and so is the body that follows.
async fn the_wait_is_a_child_of_the_callers_span() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _here = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    let store = MemoryStore::new();
    let build = || LockManager::builder(store.clone()).build_lazy().unwrap();
    let (one, other) = (build(), build());
    let guard = one.lock("key").acquire().await.unwrap();
    let token = guard.fence_token();
    let request = async {
        let options = LockOptions::new().wait(WAIT).function("shop::settle");
        let work = other.lock("key").options(&options).run(async {
            tracing::info_span!("work").in_scope(|| ());
        });
        let release = async {
            while one
                .admin()
                .get("key")
                .await
                .unwrap()
                .is_none_or(|row| row.wanted_until == Timestamp::EPOCH)
            {
                sleep(Duration::from_millis(1)).await;
            }
            other.lock("key").acquire().await.unwrap_err();
            let soon = LockOptions::new().wait(Duration::from_millis(1));
            other.lock("key").options(&soon).acquire().await.unwrap_err();
            guard.release().await.unwrap();
        };
        let (done, ()) = tokio::join!(work, release);
        done.unwrap();
    };
    request.instrument(tracing::info_span!("request")).await;
    let transfer = LockOptions::new().function("shop::transfer");
    let both = other.lock(["b", "a"]).options(&transfer).acquire().await.unwrap();
    one.lock(["c", "b"])
        .options(&transfer)
        .acquire()
        .await
        .unwrap_err();
    both.release().await.unwrap();

    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let find = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    assert_eq!(find("request").len(), 1, "{spans:#?}");
    let request = find("request")[0];
    let body = find("distributed_lock")[0];
    let several = |key: &str| {
        let fits = |span: &SpanData| text(span, "key").as_deref() == Some(key);
        let found: Vec<_> = find("acquire_lock")
            .into_iter()
            .filter(|span| fits(span))
            .collect();
        assert_eq!(found.len(), 1, "one span for all keys: {spans:#?}");
        found[0]
    };
    let (both, busy) = (several("a, b"), several("b, c"));
    assert_eq!(
        text(both, "code.function.name").as_deref(),
        Some("shop::transfer")
    );
    assert!(text(both, "owner").is_some() && both.status == Status::Unset);
    assert_eq!(text(busy, "error.type").as_deref(), Some("busy"));

    let mut acquires = find("acquire_lock");
    acquires.retain(|span| text(span, "key").as_deref() == Some("key"));
    // The first, by hand, was outside of the request.
    assert_eq!(acquires.len(), 4, "{spans:#?}");
    let error = |span: &SpanData| text(span, "error.type");
    let of = |name: Option<&str>| {
        let mut fits = acquires.iter().filter(|span| error(span).as_deref() == name);
        *fits.next_back().unwrap()
    };
    let (waited, busy, late) = (of(None), of(Some("busy")), of(Some("timeout")));
    for span in [waited, body, busy, late] {
        assert_eq!(span.parent_span_id, request.span_context.span_id(), "{span:#?}");
        assert_eq!(text(span, "key").as_deref(), Some("key"));
    }
    assert_eq!(find("work")[0].parent_span_id, body.span_context.span_id());
    assert!(
        waited.start_time <= busy.start_time && busy.end_time <= waited.end_time,
        "it covers the wait"
    );
    assert!(waited.end_time <= body.start_time);
    assert_eq!(
        text(waited, "code.function.name").as_deref(),
        Some("shop::settle")
    );
    assert_eq!(text(waited, "db.system.name").as_deref(), Some("memory"));
    assert_eq!(attribute(waited, "fence_token"), attribute(body, "fence_token"));
    assert!(matches!(attribute(waited, "fence_token"), Some(Value::I64(entered)) if *entered > token));
    assert_eq!(text(waited, "owner"), text(body, "owner"));
    assert_eq!(waited.status, Status::Unset);
    assert_eq!(busy.status, Status::Unset, "busy is an ordinary answer");
    assert!(matches!(late.status, Status::Error { .. }));
}

/// How many values of the histogram have this outcome.
fn counted(exported: &[ResourceMetrics], name: &str, outcome: &str) -> u64 {
    let scopes = exported.iter().flat_map(ResourceMetrics::scope_metrics);
    let metrics = scopes.flat_map(ScopeMetrics::metrics);
    let points = metrics
        .filter(|metric| metric.name() == name)
        .filter_map(|metric| match metric.data() {
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => Some(histogram.data_points()),
            _ => None,
        });
    let fits =
        |label: &opentelemetry::KeyValue| label.key.as_str() == "outcome" && label.value.as_str() == outcome;
    let points = points.flatten().filter(|point| point.attributes().any(fits));
    points.map(HistogramDataPoint::count).sum()
}

/// The metrics go through the facade `metrics`, for which there is a bridge.
async fn metrics_go_through_the_facade() {
    let memory = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(memory.clone()).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    let bridge = OpenTelemetryMetrics::new(provider.meter("dblock"));
    metrics::set_global_recorder(OpenTelemetryRecorder::new(bridge)).unwrap();

    let locks = LockManager::connect("memory:").await.unwrap();
    let guard = locks.lock("key").acquire().await.unwrap();
    locks.lock("key").acquire().await.unwrap_err();
    guard.release().await.unwrap();

    provider.force_flush().unwrap();
    let exported = memory.get_finished_metrics().unwrap();
    let counts = |outcome| counted(&exported, "dblock_acquire_seconds", outcome);
    assert_eq!((counts("acquired"), counts("busy")), (1, 1), "{exported:#?}");
}
