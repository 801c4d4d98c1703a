//! Stores that wrap another store.

/// In an `impl Store` for a type with a field `inner: Arc<dyn Store>`: forwards all methods but `capabilities`
/// and `apply` to that store. `forward_to_inner!(but listen)` leaves out `listen` too, `(but purge)` `purge`,
/// and `(but records)` `records`.
#[macro_export]
macro_rules! forward_to_inner {
    () => {
        $crate::forward_to_inner!(but purge);
        $crate::forward_to_inner!(@purge);
    };
    (but listen) => {
        $crate::forward_to_inner!(@rest);
        $crate::forward_to_inner!(@purge);
        $crate::forward_to_inner!(@records);
    };
    (but purge) => {
        $crate::forward_to_inner!(@rest);
        $crate::forward_to_inner!(@listen);
        $crate::forward_to_inner!(@records);
    };
    (but records) => {
        $crate::forward_to_inner!(@rest);
        $crate::forward_to_inner!(@listen);
        $crate::forward_to_inner!(@purge);
    };
    (@records) => {
        fn records(&self) -> Option<&dyn $crate::dblock_core::store::Records> {
            self.inner.records()
        }
    };
    (@listen) => {

        fn listen<'a>(
            &'a self,
            tell: &'a (dyn Fn($crate::dblock_core::store::WakeUp) + Send + Sync),
        ) -> $crate::dblock_core::store::StoreFuture<'a, $crate::dblock_core::store::StoreError> {
            self.inner.listen(tell)
        }
    };
    (@purge) => {
        fn purge<'a>(
            &'a self,
            idle: ::std::time::Duration,
            after: Option<&'a $crate::dblock_core::Key>,
            limit: u32,
        ) -> $crate::dblock_core::store::StoreFuture<'a, Result<$crate::dblock_core::store::Purged, $crate::dblock_core::store::StoreError>> {
            self.inner.purge(idle, after, limit)
        }
    };
    (@rest) => {
        fn location(&self) -> Option<String> {
            self.inner.location()
        }

        fn check_schema(&self) -> $crate::dblock_core::store::StoreFuture<'_, Result<(), $crate::dblock_core::store::StoreError>> {
            self.inner.check_schema()
        }

        fn migrate(&self) -> $crate::dblock_core::store::StoreFuture<'_, Result<(), $crate::dblock_core::store::StoreError>> {
            self.inner.migrate()
        }

        fn inspect<'a>(
            &'a self,
            filter: &'a $crate::dblock_core::InspectFilter,
        ) -> $crate::dblock_core::store::StoreFuture<'a, Result<Vec<$crate::dblock_core::LockRow>, $crate::dblock_core::store::StoreError>> {
            self.inner.inspect(filter)
        }

        fn rows<'a>(
            &'a self,
            keys: &'a [$crate::dblock_core::Key],
        ) -> $crate::dblock_core::store::StoreFuture<'a, Vec<Result<Option<$crate::dblock_core::LockRow>, $crate::dblock_core::store::StoreError>>> {
            self.inner.rows(keys)
        }

        fn row<'a>(
            &'a self,
            key: &'a $crate::dblock_core::Key,
        ) -> $crate::dblock_core::store::StoreFuture<'a, Result<Option<$crate::dblock_core::LockRow>, $crate::dblock_core::store::StoreError>> {
            self.inner.row(key)
        }

        fn revoke<'a>(
            &'a self,
            key: &'a $crate::dblock_core::Key,
        ) -> $crate::dblock_core::store::StoreFuture<'a, Result<bool, $crate::dblock_core::store::StoreError>> {
            self.inner.revoke(key)
        }

        fn force_release<'a>(
            &'a self,
            key: &'a $crate::dblock_core::Key,
        ) -> $crate::dblock_core::store::StoreFuture<'a, Result<bool, $crate::dblock_core::store::StoreError>> {
            self.inner.force_release(key)
        }

        fn diagnose(&self) -> $crate::dblock_core::store::StoreFuture<'_, Result<Vec<$crate::dblock_core::Finding>, $crate::dblock_core::store::StoreError>> {
            self.inner.diagnose()
        }

        fn close(&self) -> $crate::dblock_core::store::StoreFuture<'_, ()> {
            self.inner.close()
        }

        fn part_of(&self, key: &$crate::dblock_core::Key) -> usize {
            self.inner.part_of(key)
        }

        fn make_free_rows<'a>(
            &'a self,
            keys: &'a [$crate::dblock_core::Key],
        ) -> $crate::dblock_core::store::StoreFuture<'a, Result<bool, $crate::dblock_core::store::StoreError>> {
            self.inner.make_free_rows(keys)
        }

        fn transaction_source(&self, part: usize) -> Option<::std::sync::Arc<dyn ::std::any::Any + Send + Sync>> {
            self.inner.transaction_source(part)
        }
    };
}
