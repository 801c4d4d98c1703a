//! Stores around another store.

/// Inside of `impl Store` for a type with a field `inner: Arc<dyn Store>`: every method but `capabilities` and
/// `apply` goes to the store inside. `forward_to_inner!(but listen)` leaves out `listen` too.
#[macro_export]
macro_rules! forward_to_inner {
    () => {
        $crate::forward_to_inner!(but listen);

        fn listen<'a>(
            &'a self,
            tell: &'a (dyn Fn($crate::store::WakeUp) + Send + Sync),
        ) -> $crate::store::StoreFuture<'a, $crate::store::StoreError> {
            self.inner.listen(tell)
        }
    };
    (but listen) => {
        fn check_schema(&self) -> $crate::store::StoreFuture<'_, Result<(), $crate::store::StoreError>> {
            self.inner.check_schema()
        }

        fn migrate(&self) -> $crate::store::StoreFuture<'_, Result<(), $crate::store::StoreError>> {
            self.inner.migrate()
        }

        fn inspect<'a>(
            &'a self,
            filter: &'a $crate::InspectFilter,
        ) -> $crate::store::StoreFuture<'a, Result<Vec<$crate::LockRow>, $crate::store::StoreError>> {
            self.inner.inspect(filter)
        }

        fn revoke<'a>(
            &'a self,
            key: &'a $crate::Key,
        ) -> $crate::store::StoreFuture<'a, Result<bool, $crate::store::StoreError>> {
            self.inner.revoke(key)
        }

        fn force_release<'a>(
            &'a self,
            key: &'a $crate::Key,
        ) -> $crate::store::StoreFuture<'a, Result<bool, $crate::store::StoreError>> {
            self.inner.force_release(key)
        }

        fn purge<'a>(
            &'a self,
            idle: ::std::time::Duration,
            after: Option<&'a $crate::Key>,
            limit: u32,
        ) -> $crate::store::StoreFuture<'a, Result<$crate::store::Purged, $crate::store::StoreError>> {
            self.inner.purge(idle, after, limit)
        }

        fn close(&self) -> $crate::store::StoreFuture<'_, ()> {
            self.inner.close()
        }

        fn fence_source(&self) -> Option<$crate::store::FenceSource> {
            self.inner.fence_source()
        }
    };
}
