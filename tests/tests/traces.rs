//! The spans of a lock, as OpenTelemetry has them.
//!
//! A process of its own: tests beside it without a subscriber would switch spans off.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::MemoryStore;
use dblock::store::clock::Timestamp;
use dblock::{LockManager, LockOptions};
use opentelemetry::Value;
use opentelemetry::trace::{Status, TracerProvider as _};
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

/// One span an acquire: the wait is a child of the caller's span, and so is the body that follows.
#[tokio::test]
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
