//! Functions that are async without the keyword:
//! `fn f() -> Pin<Box<dyn Future<Output = T>>> { Box::pin(async move {…}) }`, which is what `async_trait`
//! generates, and `fn f() -> impl Future<Output = T> { async move {…} }`. `BoxFuture<'_, T>` and
//! `async move {…}.boxed()` are understood too.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::Parser;
use syn::{
    Block, Expr, ExprAsync, GenericArgument, Ident, Pat, PathArguments, ReturnType, Stmt, Type,
    TypeParamBound,
};

use crate::function::{Function, bindings, in_braces_of};

/// The parts of such a function.
pub(crate) struct Desugared {
    /// The output of the future.
    pub(crate) output: Type,
    /// Statements of the async block that destructure an argument, and the names that they bind.
    pub(crate) unpacked: Vec<Stmt>,
    pub(crate) unpacked_names: Vec<Ident>,
    /// The rest of the async block.
    pub(crate) body: TokenStream,
    statements: Vec<Stmt>,
}

impl Desugared {
    /// The parts, if the function has one of these forms.
    pub(crate) fn of(function: &Function) -> Option<Self> {
        if function.sig.asyncness.is_some() {
            return None;
        }
        let output = future_output(&function.sig.output)?;
        let mut statements = Block::parse_within.parse2(function.body.stream()).ok()?;
        let future = future_block(&mut statements)?;
        // `async_trait` moves each argument into the block before anything else.
        let mut at_start = true;
        let (unpacked, body): (Vec<_>, Vec<_>) = std::mem::take(&mut future.block.stmts)
            .into_iter()
            .partition(|statement| {
                at_start &= prepares(statement);
                takes_argument_apart(statement) || at_start && moves_argument(statement)
            });
        let mut unpacked_names = Vec::new();
        for statement in &unpacked {
            if let Stmt::Local(local) = statement {
                bindings(&local.pat, &mut unpacked_names);
            }
        }
        let code = body.iter().map(ToTokens::to_token_stream).collect();
        let body = match body.as_slice() {
            // `unused_braces` would warn.
            [Stmt::Expr(_, None)] => code,
            // An item at its start stands in front of all statements.
            _ => in_braces_of(future.block.brace_token.span.join(), code).into_token_stream(),
        };
        Some(Self {
            output,
            unpacked,
            unpacked_names,
            body,
            statements,
        })
    }

    /// The function's body with another async block.
    pub(crate) fn with_body(mut self, body: TokenStream) -> TokenStream {
        if let Some(future) = future_block(&mut self.statements) {
            future.block.stmts = self.unpacked;
            future.block.stmts.push(Stmt::Expr(Expr::Verbatim(body), None));
        }
        self.statements.iter().map(ToTokens::to_token_stream).collect()
    }
}

/// The output of the future that a function returns.
pub(crate) fn future_output(output: &ReturnType) -> Option<Type> {
    match output {
        ReturnType::Type(_, ty) => output_of(ty),
        ReturnType::Default => None,
    }
}

/// The type behind `Output =`.
fn output_of(ty: &Type) -> Option<Type> {
    let bounds = match ty {
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Paren(ty) => return output_of(&ty.elem),
        Type::Group(ty) => return output_of(&ty.elem),
        Type::Path(ty) => {
            // Pin<Box<…>>, or the alias that futures has for it.
            let last = ty.path.segments.last()?;
            let PathArguments::AngleBracketed(arguments) = &last.arguments else {
                return None;
            };
            let is_alias = last.ident == "BoxFuture" || last.ident == "LocalBoxFuture";
            return arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::Type(ty) if is_alias => Some(ty.clone()),
                GenericArgument::Type(ty) => output_of(ty),
                _ => None,
            });
        }
        _ => return None,
    };
    bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let segment = bound.path.segments.last()?;
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
            return None;
        };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(assoc) if segment.ident == "Future" && assoc.ident == "Output" => {
                Some(assoc.ty.clone())
            }
            _ => None,
        })
    })
}

/// The async block that the function ends with.
fn future_block(statements: &mut [Stmt]) -> Option<&mut ExprAsync> {
    let Some(Stmt::Expr(last, None)) = statements.last_mut() else {
        return None;
    };
    match last {
        Expr::Async(future) => Some(future),
        Expr::Call(call) if call.args.len() == 1 && is_pin(&call.func) => match call.args.first_mut() {
            Some(Expr::Async(future)) => Some(future),
            _ => None,
        },
        Expr::MethodCall(call) if call.method == "boxed" || call.method == "boxed_local" => {
            match &mut *call.receiver {
                Expr::Async(future) => Some(future),
                _ => None,
            }
        }
        _ => None,
    }
}

fn is_pin(function: &Expr) -> bool {
    matches!(function, Expr::Path(path) if path.path.segments.last().is_some_and(|segment| segment.ident == "pin"))
}

/// What `async_trait` begins a block with: `if let Some(__ret) = … { return __ret; }` and `let … = …;`.
fn prepares(statement: &Stmt) -> bool {
    takes_argument_apart(statement)
        || match statement {
            Stmt::Expr(Expr::If(_), _) => true,
            Stmt::Local(local) => matches!(&local.init, Some(init) if matches!(*init.expr, Expr::Path(_))),
            _ => false,
        }
}

/// `let name = name;`. Inside the locked body it would be a use of the argument.
fn moves_argument(statement: &Stmt) -> bool {
    let Stmt::Local(local) = statement else {
        return false;
    };
    let (Pat::Ident(pat), Some(init)) = (&local.pat, &local.init) else {
        return false;
    };
    pat.by_ref.is_none()
        && pat.subpat.is_none()
        && matches!(&*init.expr, Expr::Path(path) if path.path.is_ident(&pat.ident))
}

/// `let Path(id) = { let __arg1 = __arg1; __arg1 };`, as `async_trait` writes it: the key needs these names.
fn takes_argument_apart(statement: &Stmt) -> bool {
    let Stmt::Local(local) = statement else {
        return false;
    };
    let Some(init) = &local.init else { return false };
    let Expr::Block(block) = &*init.expr else {
        return false;
    };
    let Some(Stmt::Expr(Expr::Path(value), None)) = block.block.stmts.last() else {
        return false;
    };
    !matches!(local.pat, Pat::Ident(_))
        && value
            .path
            .get_ident()
            .is_some_and(|name| name.to_string().starts_with("__arg"))
}

#[cfg(test)]
mod tests {
    use proc_macro2::{Delimiter, Group};
    use quote::quote;
    use syn::parse_quote;

    use super::*;
    use crate::kind::Kind;

    fn read(output: &str, body: &str) -> Option<Desugared> {
        let item = format!("fn f() -> {output} {{ {body} }}");
        Desugared::of(&Function::read(item.parse().unwrap(), Kind::Lock).unwrap())
    }

    #[test]
    fn a_future_is_understood_where_an_async_block_makes_it() {
        for (output, body) in [
            ("impl Send + Future<Output = u8>", "async move { 1 }"),
            (
                "Pin<Box<dyn Future<Output = u8> + Send>>",
                "Box::pin(async move { 1 })",
            ),
            (
                "(Pin<Box<(dyn Future<Output = u8>)>>)",
                "g(); pin(async move { 1 })",
            ),
            ("BoxFuture<'_, u8>", "async move { 1 }.boxed()"),
            ("LocalBoxFuture<'_, u8>", "async move { 1 }.boxed_local()"),
        ] {
            let output = read(output, body).map(|parts| parts.output.to_token_stream().to_string());
            assert_eq!(output.as_deref(), Some("u8"), "{body}");
        }
        let fragment = Group::new(Delimiter::None, quote!(impl Future<Output = u8>));
        assert!(future_output(&parse_quote!(-> #fragment)).is_some());
        let future = "impl Future<Output = u8>";
        for (body, inside) in [("1", "1"), ("g (1) ; 1", "{ g (1) ; 1 }")] {
            let parts = read(future, &format!("async move {{ {body} }}")).unwrap();
            assert_eq!(parts.body.to_string(), inside);
        }
        for (output, body) in [
            ("impl Iterator<Item = u8>", "async move { 1 }"),
            ("impl Add<Output = u8>", "async move { 1 }"),
            ("impl Future<Item = u8>", "async move { 1 }"),
            ("Option<u8>", "async move { 1 }"),
            (future, "spawn(async move { 1 })"),
            (future, "Box::pin(async move { 1 }, 2)"),
            (future, "Box::pin(g())"),
            (future, "async move { 1 }.shared()"),
            (future, "g().boxed()"),
            (future, "async move { 1 };"),
        ] {
            assert!(read(output, body).is_none(), "{output} {body}");
        }
    }

    #[test]
    fn an_argument_that_is_taken_apart_gives_its_names() {
        let body = "Box::pin(async move { let Path(a): Path<u8> = { let __arg1 = __arg1; __arg1 }; a })";
        let parts = read("Pin<Box<dyn Future<Output = u8>>>", body).unwrap();
        assert_eq!(parts.unpacked_names, ["a"]);
    }

    #[test]
    fn what_async_trait_has_written_stays_in_front() {
        for (statements, unpacked) in [
            ("let Path(id) = { let __arg1 = __arg1; __arg1 };", 1),
            ("g(); let Path(id) = { let __arg1 = __arg1; __arg1 };", 1),
            ("let __self = self; let id = id; let n = n;", 2),
            ("if let Some(__ret) = None { return __ret; } let id = id;", 1),
            ("let Path(a) = { let __arg1 = __arg1; __arg1 }; let id = id;", 2),
            ("g(); let id = id;", 0),
            ("let n = g(); let id = id;", 0),
            ("let ref id = id;", 0),
            ("let id @ 1 = id;", 0),
            ("let id = n;", 0),
            ("let id;", 0),
            ("let id = { let __arg1 = __arg1; __arg1 };", 0),
            ("let Path(id) = { let __arg1 = __arg1; };", 0),
            ("let Path(id) = { n };", 0),
            ("let Path(id) = n;", 0),
        ] {
            let body = format!("Box::pin(async move {{ {statements} 1 }})");
            let parts = read("Pin<Box<dyn Future<Output = u8>>>", &body).unwrap();
            assert_eq!(parts.unpacked.len(), unpacked, "{statements}");
        }
    }
}
