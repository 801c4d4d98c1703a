//! Mistakes in a function that is run again, as far as the macro can see them. Types are left to the
//! compiler.

use syn::{FnArg, PathArguments, ReceiverKind, Signature, Type};

use crate::errors::Errors;

/// A failed run must leave no traces in the arguments, and a conflict ends the transaction in which it
/// happens.
pub(crate) fn arguments(sig: &Signature, errors: &mut Errors) {
    for input in &sig.inputs {
        errors.take(argument(input));
    }
}

fn argument(input: &FnArg) -> syn::Result<()> {
    let ty = match input {
        FnArg::Receiver(receiver) => match &receiver.kind {
            ReceiverKind::Reference(_, _, Some(_)) => {
                return Err(syn::Error::new_spanned(
                    receiver,
                    "the body runs again after a conflict, and what a failed run wrote to `&mut self` would stay; take \
                     `&self`, and return what has changed",
                ));
            }
            ReceiverKind::Typed(_, ty) => ty,
            _ => return Ok(()),
        },
        FnArg::Typed(argument) => &argument.ty,
    };
    let message = if is_transaction(ty) {
        "a conflict ends this transaction, and the next run needs a new one; take the pool, and begin the transaction in \
         the body: `let mut tx = dblock::begin(pool).await?`"
    } else if is_exclusive(ty) {
        "the body runs again after a conflict, and what a failed run wrote through `&mut` would stay; take `&`, and return \
         what has changed. Instead of a connection or transaction take the pool: each run needs a transaction of its own"
    } else {
        return Ok(());
    };
    Err(syn::Error::new_spanned(ty, message))
}

/// A function without a return type cannot return a conflict.
pub(crate) const NEEDS_RESULT: &str = "this function returns nothing, so it cannot say that there was a conflict; return \
    `Result<(), E>` where `E: dblock::optimistic::Conflict`";

fn is_exclusive(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => reference.mutability.is_some(),
        Type::Paren(ty) => is_exclusive(&ty.elem),
        Type::Group(ty) => is_exclusive(&ty.elem),
        _ => false,
    }
}

/// Whether this is a transaction of sqlx or `SeaORM`, by its name. An application may well have a
/// `Transaction` of its own, which is an ordinary value.
pub(crate) fn is_transaction(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => is_transaction(&reference.elem),
        Type::Paren(ty) => is_transaction(&ty.elem),
        Type::Group(ty) => is_transaction(&ty.elem),
        Type::Path(ty) => ty.path.segments.last().is_some_and(|segment| {
            let name = segment.ident.to_string();
            let generic = matches!(segment.arguments, PathArguments::AngleBracketed(_));
            match name.as_str() {
                "Transaction" => generic,
                name => [
                    "PgTransaction",
                    "MySqlTransaction",
                    "SqliteTransaction",
                    "DatabaseTransaction",
                    "LockedTransaction",
                ]
                .contains(&name),
            }
        }),
        _ => false,
    }
}
