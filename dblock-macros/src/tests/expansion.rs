//! The generated code, as snapshots.

use proc_macro2::{Delimiter, Group, TokenStream};
use quote::quote;

use crate::expand;
use crate::kind::Kind;

/// A snapshot without the input, which is in the test.
macro_rules! snapshot {
    ($code:expr $(,)?) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($code) })
    };
}

/// The expansion as formatted code, inside an `impl` if it is a method.
fn expanded(args: TokenStream, item: TokenStream) -> String {
    expanded_by(Kind::Lock, args, item)
}

fn expanded_by(kind: Kind, args: TokenStream, item: TokenStream) -> String {
    let expanded = expand::expand(kind, args, item).expect("no mistakes");
    let is_method = expanded.to_string().contains("self");
    let file = if is_method {
        quote!(impl Service { #expanded })
    } else {
        expanded
    };
    prettyplease::unparse(&syn::parse2(file).expect("an item"))
}

#[test]
fn method() {
    snapshot!(expanded(
        quote!(
            key = "order:{order.id}",
            ttl = "30s",
            wait = "5s",
            manager = self.locks
        ),
        quote! {
            /// Documented.
            pub async fn settle(&self, order: &Order) -> Result<Receipt, OrderError> {
                let receipt = self.shop.settle(order).await?;
                Ok(receipt)
            }
        },
    ));
}

#[test]
fn smallest() {
    snapshot!(expanded(
        quote!(key = "nightly"),
        quote! {
            async fn clean_up() -> Result<(), LockError> {
                Ok(())
            }
        },
    ));
}

#[test]
fn several_keys() {
    snapshot!(expanded(
        quote!(keys = ["account:{from}", to.key()], wait = "5s"),
        quote! {
            async fn transfer(from: u64, to: Account) -> Result<(), LockError> {
                Ok(())
            }
        },
    ));
}

#[test]
fn shared_and_limited() {
    snapshot!(expanded(
        quote!(key = "catalog", shared),
        quote! {
            #[distributed_lock(key = "provider", wait = "5s", limit = 8)]
            #[distributed_lock(key = "provider:{region}", limit = self.limit)]
            async fn price(&self, region: &str) -> Result<u64, LockError> {
                Ok(1)
            }
        },
    ));
}

#[test]
fn everything() {
    snapshot!(expanded(
        quote! {
            key = format!("{id}"), ttl = self.ttl, wait = "forever", manager = self.locks(), renew = false,
            max_hold = "10m", hold_min = "1s 500ms", on_lost = "signal", on_busy = Ok(0),
            on_error = |error| Err(error.into()), crate = my::lock
        },
        quote! {
            async fn run(self: Arc<Self>, id: u64) -> Result<impl Iterator<Item = u8>, Error> {
                #![allow(unused)]
                todo!()
            }
        },
    ));
}

#[test]
fn stacked() {
    snapshot!(expanded(
        quote!(key = "from:{from}"),
        quote! {
            #[distributed_lock(key = "to:{to}", on_busy = Ok(false))]
            #[instrument]
            async fn transfer(from: String, to: String) -> Result<bool, Error> {
                bank(to, from).await
            }
        },
    ));
}

#[test]
fn async_trait() {
    snapshot!(expanded(
        quote!(key = "order:{id}:{self.name}", on_error = |_| 0),
        quote! {
            fn settle<'life0, 'async_trait>(
                &'life0 self,
                __arg1: Path<u64>,
            ) -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = u64> + ::core::marker::Send + 'async_trait>>
            where
                'life0: 'async_trait,
            {
                Box::pin(async move {
                    let __self = self;
                    let Path(id) = { let __arg1 = __arg1; __arg1 };
                    let __ret: u64 = { id + __self.count };
                    __ret
                })
            }
        },
    ));
}

#[test]
fn retry() {
    snapshot!(expanded_by(
        Kind::Retry,
        quote!(times = 3, backoff = "10ms..200ms", within = "2s"),
        quote! {
            async fn sell(&self, id: u64, ref name: String) -> Result<u64, StockError> {
                let left = self.take(id, name).await?;
                Ok(left)
            }
        },
    ));
}

#[test]
fn lock_above_a_retry() {
    snapshot!(expanded(
        quote!(key = "stock:{id}"),
        quote! {
            #[optimistic_retry]
            async fn sell(id: u64) -> Result<u64, StockError> {
                take(id).await
            }
        },
    ));
}

#[test]
fn retry_above_a_lock() {
    snapshot!(expanded_by(
        Kind::Retry,
        quote!(),
        quote! {
            #[dblock::distributed_lock(key = "stock:{name}")]
            async fn sell(id: u64, name: &str) -> Result<u64, StockError> {
                take(id).await
            }
        },
    ));
}

#[test]
fn once() {
    snapshot!(expanded_by(
        Kind::Once,
        quote! {
            key = "pay:{req.id}", remember = "24h", on_crash = "complete_in", fingerprint = req, tick = tick,
            max_attempts = 5, backoff = "10s", wait = "5s"
        },
        quote! {
            async fn pay(req: &Request, tick: Timestamp) -> Result<Receipt, PayError> {
                send(req).await
            }
        },
    ));
}

#[test]
fn blocking() {
    snapshot!(expanded(
        quote!(key = "report"),
        quote! {
            fn report(day: u8) -> Result<u64, LockError> {
                Ok(write(day))
            }
        },
    ));
}

#[test]
fn transaction() {
    snapshot!(expanded(
        quote!(key = "stock:{id}", tx = tx),
        quote! {
            async fn sell(id: u64, mut tx: &mut Transaction<'_, Postgres>) -> Result<(), StockError> {
                take(&mut tx, id).await
            }
        },
    ));
}

#[test]
fn a_mistake_leaves_the_function_standing() {
    let item = quote! {
        #[distributed_lock(kye = "b")]
        async fn settle(id: u64) -> Result<(), Error> {
            Ok(())
        }
    };
    let file: syn::File = syn::parse2(expand::attribute(
        Kind::Lock,
        quote!(key = "{di}", ttl = "5"),
        item,
    ))
    .expect("items");
    snapshot!(prettyplease::unparse(&file));
}

/// The first mistake of a function that is to run once.
fn refused(item: TokenStream) -> String {
    let args = quote!(key = "a", remember = "1h", on_crash = "stop");
    let refused = expand::expand(Kind::Once, args, item);
    refused.expect_err("a mistake").to_string()
}

#[test]
fn a_block_on_of_a_person_has_its_text() {
    let made = refused(quote!(
        fn f() -> Result<(), E> {
            { runtime.block_on(g()) }
        }
    ));
    assert!(made.contains("made this function synchronous already"), "{made}");
    let written = "fn f() -> Result<(), E> { { runtime.block_on(g()) } }";
    let written = refused(written.parse().unwrap());
    assert!(written.contains("that `block_on` runs"), "{written}");
    let other = refused("fn f() -> Result<(), E> { block }".parse().unwrap());
    assert!(other.contains("write `async fn f`"), "{other}");
}

#[test]
fn an_await_inside_shows_that_async_was_forgotten() {
    let item = quote!(
        fn f() -> Result<(), E> {
            { g().await }
        }
    );
    let refused = expand::expand(Kind::Lock, quote!(key = "a"), item).expect_err("a mistake");
    assert!(refused.to_string().contains("write `async fn f`"), "{refused}");
}

#[test]
fn an_attribute_that_is_expanded_after_the_one_above_it_is_refused() {
    let lock = |item| expand::expand(Kind::Lock, quote!(key = "a"), item);
    let once = lock(quote!(
        async fn f() -> Result<(), E> {
            Ok(())
        }
    ))
    .expect("no mistakes");
    let refused = lock(once).expect_err("a mistake");
    assert!(
        refused.to_string().starts_with("this attribute stands below"),
        "{refused}"
    );
    for body in [quote!(declared), quote!(x::declared()), quote!(__dblock::other())] {
        lock(quote!(async fn f() -> Result<(), E> { #body })).expect("no mistakes");
    }
}

#[test]
fn a_brace_is_left_to_the_compiler_where_nothing_else_is_wrong() {
    let lock = |args| {
        expand::expand(
            Kind::Lock,
            args,
            quote!(
                async fn f(id: u64) -> Result<(), E> {
                    Ok(())
                }
            ),
        )
    };
    lock(quote!(key = "{id")).expect("no mistakes");
    let refused = lock(quote!(key = "{id", ttl = "5")).expect_err("two mistakes");
    assert_eq!(refused.into_iter().count(), 2);
}

#[test]
fn behind_a_mistake_the_function_is_the_same() {
    for item in [
        quote!(
            async fn f() {
                g()
            }
        ),
        quote!(
            async fn f() {
                #![allow(x)]
                g()
            }
        ),
    ] {
        let output = expand::attribute(Kind::Lock, quote!(), item.clone()).to_string();
        assert!(output.ends_with(&item.to_string()), "{output}");
    }
}

#[test]
fn a_retry_leaves_its_arguments_as_they_were() {
    let fragment = |ty| Group::new(Delimiter::None, ty);
    let (exclusive, transaction) = (fragment(quote!(&mut X)), fragment(quote!(PgTransaction<'_>)));
    for argument in [
        quote!(&mut self),
        quote!(self: &mut Self),
        quote!(x: (&mut X)),
        quote!(x: #exclusive),
        quote!(x: PgTransaction<'_>),
        quote!(x: (PgTransaction<'_>)),
        quote!(x: #transaction),
    ] {
        let item = quote!(async fn f(#argument) -> Result<(), E> { Ok(()) });
        expand::expand(Kind::Retry, quote!(), item).expect_err("a mistake");
    }
}
