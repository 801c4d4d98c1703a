//! Functions that set off lints, with and without the attribute; `lints.rs` compares.
#![warn(
    unused,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    rust_2018_idioms,
    missing_docs
)]
#![warn(
    elided_lifetimes_in_paths,
    let_underscore_drop,
    redundant_lifetimes,
    single_use_lifetimes
)]
#![warn(
    tail_expr_drop_order,
    trivial_casts,
    trivial_numeric_casts,
    unreachable_pub,
    unused_lifetimes
)]
#![warn(
    unused_qualifications,
    variant_size_differences,
    unit_bindings,
    unused_results,
    unused_extern_crates
)]
#![warn(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::todo
)]
#![warn(
    clippy::shadow_reuse,
    clippy::shadow_same,
    clippy::shadow_unrelated,
    clippy::print_stdout
)]
#![warn(
    clippy::let_underscore_untyped,
    clippy::let_underscore_must_use,
    clippy::str_to_string
)]
#![warn(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::clone_on_ref_ptr,
    clippy::dbg_macro
)]
#![warn(
    clippy::allow_attributes,
    clippy::single_call_fn,
    clippy::question_mark_used,
    clippy::unreachable
)]

use std::pin::Pin;

#[cfg(feature = "locked")]
use dblock::distributed_lock;
use dblock_ui_tests::OrderError;
use tokio::task::yield_now;

pub struct View<'a>(&'a str);

pub struct Service {
    name: String,
}

#[async_trait::async_trait]
pub trait Trait {
    async fn with_items(&self, number: u64) -> Result<u64, OrderError>;
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a", ttl = "10s", wait = "1s"))]
pub async fn quiet(number: u64, text: &str) -> Result<u64, OrderError> {
    yield_now().await;
    if text.is_empty() {
        return Err(OrderError::Unknown(number));
    }
    Ok(number)
}

#[rustfmt::skip]
#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn one_line(number: u64) -> Result<u64, OrderError> { yield_now().await; Ok(number) }

#[rustfmt::skip]
#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn one_expression(number: u64) -> Result<u64, OrderError> { quiet(number, "a").await }

#[rustfmt::skip]
#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn braces(number: u64) -> Result<u64, OrderError> { { quiet(number, "a").await } }

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn unused(
    first: u64,
    mut second: String,
    _third: u8,
    (fourth, fifth): (u8, u8),
) -> Result<u8, OrderError> {
    yield_now().await;
    let local = 1;
    let mut number = 1;
    number = 2;
    Ok(fifth)
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn shadowed(first: u64, second: u64) -> Result<u64, OrderError> {
    yield_now().await;
    let first = 1;
    let second = second + first;
    Ok(second)
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn assigned(mut first: u64, mut second: u64) -> Result<(), OrderError> {
    yield_now().await;
    first = 1;
    second += 1;
    Ok(())
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn ends_with_return(first: u64) -> Result<u64, OrderError> {
    yield_now().await;
    return Ok(first);
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn ends_with_binding(first: u64) -> Result<u64, OrderError> {
    yield_now().await;
    let result = Ok(first);
    result
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn question_mark_at_the_end(first: Result<u64, OrderError>) -> Result<u64, OrderError> {
    yield_now().await;
    Ok(first?)
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn unreachable_end(first: u64) -> Result<u64, OrderError> {
    yield_now().await;
    return Ok(first);
    yield_now().await;
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn must_use(first: Vec<u64>) -> Result<usize, OrderError> {
    yield_now().await;
    first.len();
    yield_now();
    let _ = first.clone();
    Ok(first.iter().map(|n| n).count())
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn style(text: &String, list: &Vec<u8>, flag: bool) -> Result<bool, OrderError> {
    yield_now().await;
    let owned = text.to_string();
    println!("{}", owned);
    if flag == true {
        return Ok(false);
    } else {
        match list.len() {
            0 => (),
            _ => (),
        }
    }
    Ok((flag))
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn panics(list: &[u8]) -> Result<u8, OrderError> {
    yield_now().await;
    let first = list.first().unwrap();
    let second = list.get(1).expect("two");
    Ok(first + second + list[2])
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn guard_across_await(lock: &std::sync::Mutex<u8>) -> Result<u8, OrderError> {
    let guard = lock.lock().unwrap();
    yield_now().await;
    Ok(*guard)
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn elided_lifetime(view: View<'_>) -> Result<View<'_>, OrderError> {
    yield_now().await;
    Ok(view)
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn one_lifetime<'a>(text: &'a str) -> Result<usize, OrderError> {
    yield_now().await;
    Ok(text.len() as usize)
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn by_value(text: String, _used: u8) -> Result<usize, OrderError> {
    yield_now().await;
    Ok(text.len() + usize::from(_used))
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
async fn dead_code() -> Result<(), OrderError> {
    yield_now().await;
    Ok(())
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async unsafe fn unsafe_body(pointer: *const u8) -> Result<u8, OrderError> {
    yield_now().await;
    Ok(*pointer)
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn complicated(n: u64, m: u64) -> Result<std::vec::Vec<u64>, OrderError> {
    #![allow(clippy::needless_range_loop)]
    yield_now().await;
    let mut result = Vec::new();
    for i in 0..n as usize {
        for j in 0..m as usize {
            if i == j && i != 3 || (j == 4 && i > 2) {
                result.push((i * j) as u64);
            } else if i > 100 {
                break;
            }
        }
    }
    loop {
        if result.len() > 4 {
            return Ok(result);
        }
        result.push(0);
    }
}

impl Service {
    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub async fn unused_self(&self) -> Result<(), OrderError> {
        yield_now().await;
        Ok(())
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub async fn needless_mut(&mut self, text: &mut String) -> Result<usize, OrderError> {
        yield_now().await;
        Ok(self.name.len() + text.len())
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub async fn into_name(self: std::sync::Arc<Self>) -> Result<String, OrderError> {
        yield_now().await;
        let shared = self.clone();
        Ok(shared.name.clone())
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub async fn get_number(self: Box<Service>) -> Result<u64, OrderError> {
        yield_now().await;
        todo!("later")
    }
}

// The attribute's expressions set off nothing either.
#[cfg_attr(feature = "locked", distributed_lock(key = text, manager = locks))]
pub async fn by_reference(text: &str, locks: &dblock::LockManager) -> Result<(), OrderError> {
    yield_now().await;
    drop((text, locks));
    Ok(())
}

#[cfg_attr(
    feature = "locked",
    distributed_lock(
        key = "{number:04}:{service.name}:{text.len()}",
        hold_min = "1s",
        max_hold = "2s"
    )
)]
#[cfg_attr(feature = "locked", dblock::distributed_lock(keys = ["{number}", text]))]
pub async fn by_template(number: u64, service: &Service, text: &str) -> Result<u64, OrderError> {
    yield_now().await;
    drop((service, text));
    Ok(number)
}

#[cfg_attr(
    feature = "locked",
    distributed_lock(key = text.as_str(), manager = if *first { locks } else { &other.0 }, on_busy = Ok(1))
)]
pub async fn by_choice(
    text: String,
    locks: &dblock::LockManager,
    other: &(std::sync::Arc<dblock::LockManager>, u8),
    first: &bool,
) -> Result<usize, OrderError> {
    yield_now().await;
    drop((locks, other, first));
    Ok(text.len())
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn conditional(nothing: (), number: u64, _third: u64) -> Result<u64, OrderError> {
    yield_now().await;
    #[cfg(any())]
    drop(number);
    let same = nothing;
    Ok(_third)
}

// Items stand in front of all statements of the async block that the user wrote.
#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub fn by_hand(number: u64) -> impl Future<Output = Result<u64, OrderError>> + Send {
    let twice = number + number;
    async move {
        use std::convert::identity;
        const MORE: u64 = 3;
        fn inner(number: u64) -> u64 {
            identity(number)
        }
        yield_now().await;
        Ok(inner(twice).max(MORE))
    }
}

#[rustfmt::skip]
#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub fn by_hand_in_one_expression(number: u64) -> impl Future<Output = Result<u64, OrderError>> {
    async move { quiet(number, "a").await }
}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub fn by_hand_in_a_box<'a>(text: &'a str) -> Pin<Box<dyn Future<Output = Result<usize, OrderError>> + 'a>> {
    Box::pin(async move {
        const MORE: usize = 3;
        yield_now().await;
        let late = 1;
        const LATE: usize = 4;
        Ok(text.len().max(MORE).max(LATE).max(late))
    })
}

#[async_trait::async_trait]
impl Trait for Service {
    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    async fn with_items(&self, number: u64) -> Result<u64, OrderError> {
        const MORE: u64 = 3;
        yield_now().await;
        Ok(number.max(MORE) + self.name.len() as u64)
    }
}

// A bare function has nothing that lends the transaction anew.
#[cfg_attr(feature = "locked", distributed_lock(key = "a", tx = tx))]
pub async fn in_transaction(tx: &mut sqlx::Transaction<'_, sqlx::Postgres>) -> Result<(), OrderError> {
    yield_now().await;
    drop(sqlx::query("SELECT 1").execute(&mut **tx).await);
    Ok(())
}

#[deprecated]
pub fn old() {}

#[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
pub async fn calls_old() -> Result<(), OrderError> {
    yield_now().await;
    Ok(old())
}

/// Functions that are not async.
pub mod plain {
    use super::*;

    #[cfg_attr(feature = "locked", distributed_lock(key = "a", ttl = "10s", wait = "1s"))]
    pub fn quiet(number: u64, text: &str) -> Result<u64, OrderError> {
        if text.is_empty() {
            return Err(OrderError::Unknown(number));
        }
        Ok(number)
    }

    #[rustfmt::skip]
    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn one_line(number: u64) -> Result<u64, OrderError> { yield_now(); Ok(number) }

    #[rustfmt::skip]
    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn one_expression(number: u64) -> Result<u64, OrderError> { quiet(number, "a") }

    #[rustfmt::skip]
    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn braces(number: u64) -> Result<u64, OrderError> { { quiet(number, "a") } }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn unused(
        first: u64,
        mut second: String,
        _third: u8,
        (fourth, fifth): (u8, u8),
    ) -> Result<u8, OrderError> {
        let local = 1;
        let mut number = 1;
        number = 2;
        Ok(fifth)
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn shadowed(first: u64, second: u64) -> Result<u64, OrderError> {
        let first = 1;
        let second = second + first;
        Ok(second)
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn assigned(mut first: u64, mut second: u64) -> Result<(), OrderError> {
        first = 1;
        second += 1;
        Ok(())
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn ends_with_return(first: u64) -> Result<u64, OrderError> {
        return Ok(first);
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn ends_with_binding(first: u64) -> Result<u64, OrderError> {
        let result = Ok(first);
        result
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn question_mark_at_the_end(first: Result<u64, OrderError>) -> Result<u64, OrderError> {
        Ok(first?)
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn unreachable_end(first: u64) -> Result<u64, OrderError> {
        return Ok(first);
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn must_use(first: Vec<u64>) -> Result<usize, OrderError> {
        first.len();
        let _ = first.clone();
        Ok(first.iter().map(|n| n).count())
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn style(text: &String, list: &Vec<u8>, flag: bool) -> Result<bool, OrderError> {
        let owned = text.to_string();
        println!("{}", owned);
        if flag == true {
            return Ok(false);
        } else {
            match list.len() {
                0 => (),
                _ => (),
            }
        }
        Ok((flag))
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn panics(list: &[u8]) -> Result<u8, OrderError> {
        let first = list.first().unwrap();
        let second = list.get(1).expect("two");
        Ok(first + second + list[2])
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn elided_lifetime(view: View<'_>) -> Result<View<'_>, OrderError> {
        Ok(view)
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn one_lifetime<'a>(text: &'a str) -> Result<usize, OrderError> {
        Ok(text.len() as usize)
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn by_value(text: String, _used: u8) -> Result<usize, OrderError> {
        Ok(text.len() + usize::from(_used))
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = text, manager = locks))]
    pub fn by_reference(text: &str, locks: &dblock::LockManager) -> Result<(), OrderError> {
        drop((text, locks));
        Ok(())
    }

    #[cfg_attr(feature = "locked", dblock::distributed_lock(keys = ["{number}", text]))]
    pub fn by_template(number: u64, service: &Service, text: &str) -> Result<u64, OrderError> {
        drop((service, text));
        Ok(number)
    }

    #[cfg_attr(feature = "locked", distributed_lock(key = "a"))]
    pub fn conditional(nothing: (), number: u64, _third: u64) -> Result<u64, OrderError> {
        #[cfg(any())]
        drop(number);
        let same = nothing;
        Ok(_third)
    }
}

fn main() {}
