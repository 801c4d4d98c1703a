//! The lock is released when the program or the runtime that took it ends.

use dblock_tests::child::Holder;
use dblock_tests::{Backend, on_every_store};
use tokio::sync::oneshot;

use crate::{HOLDER, long};

on_every_store!(databases:
    a_panic_out_of_main_has_released,
    a_runtime_that_ends_in_the_middle_releases,
);

async fn a_panic_out_of_main_has_released(backend: Backend) {
    let mut holder = Holder::start(HOLDER, &backend, "key", "panic");
    holder.wait_until_inside();
    assert_eq!(holder.wait(), Some(101), "the exit code of a panic");
    let row = backend.the_row("key").await;
    assert!(row.is_free(), "{row:?}");
}

/// Runs `work` on a runtime of its own, on another thread, which then ends.
async fn on_another_runtime<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let thread = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work());
    });
    thread.await.unwrap();
}

async fn a_runtime_that_ends_in_the_middle_releases(backend: Backend) {
    let locks = backend.manager().await;
    on_another_runtime(move || async move {
        let (inside, is_inside) = oneshot::channel();
        tokio::spawn(async move {
            let body = async {
                inside.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            locks.lock("key").options(&long()).run(body).await
        });
        is_inside.await.unwrap();
    })
    .await;
    backend.until_free("key").await;
}
