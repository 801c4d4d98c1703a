//! The arguments that the body moves into the future under the lock, and their order.
//!
//! An async block captures the names that it uses, in the order of their first use; from a struct it captures
//! only the used fields. It drops its captures in that order. A function drops its arguments whole, from the
//! last to the first. So the block first names the arguments that the body uses, whole and from the last to
//! the first, in code that never runs.
//!
//! An argument that the body does not use is not named: that would move it into the body, so that `on_busy`
//! could not have it, and would silence `unused_variables`. So the body is read as the compiler reads it,
//! with its scopes. Only what is no Rust code, as some macro's arguments, is judged by its tokens.

#[cfg(test)]
mod tests;
mod tokens;

use std::collections::HashMap;

use proc_macro2::TokenStream;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Attribute, Block, Expr, ExprAssign, ExprBinary, ExprClosure, ExprForLoop, ExprIf, ExprLet, ExprPath,
    ExprWhile, FnArg, Ident, Item, Lit, Local, Macro, PatIdent, Signature, Stmt, UseTree,
};

use crate::function::Scope;

/// The arguments that the body uses, from the last to the first.
pub(crate) fn used(sig: &Signature, scope: &Scope, body: &TokenStream) -> Vec<Ident> {
    if sig.inputs.iter().any(is_conditional) {
        return Vec::new();
    }
    let receiver = scope.receiver.map(|span| Ident::new("self", span));
    let mut arguments: Vec<Ident> = receiver
        .into_iter()
        .chain(scope.arguments.iter().cloned())
        .collect();
    let mut uses = Uses::of(&arguments);
    match Block::parse_within.parse2(body.clone()) {
        Ok(mut statements) => uses.statements(&mut statements),
        // Half-typed code, or newer than the parser.
        Err(_) => uses.tokens(body.clone()),
    }
    let mut found = uses.found.iter();
    arguments.retain(|_| matches!(found.next(), Some(Found::Uses)));
    arguments.reverse();
    arguments
}

/// Whether the argument exists is not known yet.
pub(crate) fn is_conditional(input: &FnArg) -> bool {
    let attrs = match input {
        FnArg::Receiver(receiver) => &receiver.attrs,
        FnArg::Typed(argument) => &argument.attrs,
    };
    attrs.iter().any(is_cfg)
}

fn is_cfg(attr: &Attribute) -> bool {
    attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr")
}

/// What the body does with an argument.
#[derive(Clone, Copy)]
enum Found {
    Nothing,
    /// It gives it a new value, and perhaps reads that. A lint warns about the value that nobody has read, and
    /// another mention would confuse the lint.
    Overwrites,
    Uses,
}

/// The uses of arguments that have been found, and the scopes at the place that is being read.
struct Uses {
    index: HashMap<String, usize>,
    found: Vec<Found>,
    /// How many inner variables hide each argument here.
    hidden: Vec<usize>,
    /// What was hidden, in order, so that the end of a scope can undo it.
    hiding: Vec<usize>,
    /// How many branches, loops and closures are around this place.
    depth: usize,
    /// Whether this is a macro's argument, where a text may be a format.
    in_macro: bool,
    /// Whether this is under `#[cfg]`, and perhaps not there. Then nothing counts as a use.
    conditional: bool,
}

impl Uses {
    fn of(arguments: &[Ident]) -> Self {
        let names = arguments.iter().map(|argument| argument.unraw().to_string());
        Self {
            index: names.enumerate().map(|(at, name)| (name, at)).collect(),
            found: vec![Found::Nothing; arguments.len()],
            hidden: vec![0; arguments.len()],
            hiding: Vec::new(),
            depth: 0,
            in_macro: false,
            conditional: false,
        }
    }

    /// The argument that a name means here.
    fn argument(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied().filter(|at| self.hidden[*at] == 0)
    }

    fn use_name(&mut self, name: &str) {
        if let Some(at) = self.argument(name)
            && !self.conditional
            && !matches!(self.found[at], Found::Overwrites)
        {
            self.found[at] = Found::Uses;
        }
    }

    fn hide(&mut self, name: &Ident) {
        if let Some(at) = self.index.get(&name.unraw().to_string()) {
            self.hidden[*at] += 1;
            self.hiding.push(*at);
        }
    }

    /// An import may be of a type only, which hides no variable. Then the argument is dropped later.
    fn hide_imports(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.hide_imports(&path.tree),
            UseTree::Name(name) => self.hide(&name.ident),
            UseTree::Rename(rename) => self.hide(&rename.rename),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.hide_imports(tree)),
            UseTree::Glob(_) => {}
        }
    }

    /// What is bound inside ends with it.
    fn scope(&mut self, inside: impl FnOnce(&mut Self)) {
        let outside = self.hiding.len();
        inside(self);
        for at in self.hiding.drain(outside..) {
            self.hidden[at] -= 1;
        }
    }

    /// A scope that may not be entered, or more than once.
    fn branch(&mut self, inside: impl FnOnce(&mut Self)) {
        self.depth += 1;
        self.scope(inside);
        self.depth -= 1;
    }

    /// An item is in scope in the whole block.
    fn statements(&mut self, statements: &mut [Stmt]) {
        for statement in &*statements {
            match statement {
                Stmt::Item(Item::Fn(item)) => self.hide(&item.sig.ident),
                Stmt::Item(Item::Const(item)) => self.hide(&item.ident),
                Stmt::Item(Item::Static(item)) => self.hide(&item.ident),
                Stmt::Item(Item::Use(item)) => self.hide_imports(&item.tree),
                _ => {}
            }
        }
        for statement in statements {
            self.visit_stmt_mut(statement);
        }
    }

    /// `a = …` and `a += …`: whether the argument's own value is gone unread.
    fn assign(&mut self, target: &Expr, is_read: bool) -> bool {
        let Expr::Path(path) = target else { return false };
        let Some(at) = path
            .path
            .get_ident()
            .and_then(|name| self.argument(&name.unraw().to_string()))
        else {
            return false;
        };
        if matches!(self.found[at], Found::Nothing) && self.depth == 0 && !is_read {
            self.found[at] = Found::Overwrites;
        }
        true
    }
}

impl VisitMut for Uses {
    fn visit_attributes_mut(&mut self, attrs: &mut Vec<Attribute>) {
        self.conditional |= attrs.iter().any(is_cfg);
    }

    fn visit_stmt_mut(&mut self, statement: &mut Stmt) {
        let around = self.conditional;
        visit_mut::visit_stmt_mut(self, statement);
        self.conditional = around;
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let around = self.conditional;
        visit_mut::visit_expr_mut(self, expr);
        self.conditional = around;
    }

    /// An item sees no variables, except what a macro stands for.
    fn visit_item_mut(&mut self, item: &mut Item) {
        if let Item::Macro(item) = item {
            self.tokens(item.mac.tokens.clone());
        }
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        self.scope(|this| this.statements(&mut block.stmts));
    }

    fn visit_local_mut(&mut self, local: &mut Local) {
        self.visit_attributes_mut(&mut local.attrs);
        if let Some(init) = &mut local.init {
            self.visit_expr_mut(&mut init.expr);
            if let Some((_, diverge)) = &mut init.diverge {
                self.branch(|this| this.visit_expr_mut(diverge));
            }
        }
        self.visit_pat_mut(&mut local.pat);
    }

    fn visit_expr_let_mut(&mut self, condition: &mut ExprLet) {
        self.visit_expr_mut(&mut condition.expr);
        self.visit_pat_mut(&mut condition.pat);
    }

    fn visit_expr_if_mut(&mut self, branch: &mut ExprIf) {
        self.visit_attributes_mut(&mut branch.attrs);
        self.scope(|this| {
            this.visit_expr_mut(&mut branch.cond);
            this.branch(|this| this.visit_block_mut(&mut branch.then_branch));
        });
        if let Some((_, otherwise)) = &mut branch.else_branch {
            self.branch(|this| this.visit_expr_mut(otherwise));
        }
    }

    fn visit_expr_while_mut(&mut self, repeated: &mut ExprWhile) {
        self.visit_attributes_mut(&mut repeated.attrs);
        self.branch(|this| {
            this.visit_expr_mut(&mut repeated.cond);
            this.visit_block_mut(&mut repeated.body);
        });
    }

    fn visit_expr_for_loop_mut(&mut self, repeated: &mut ExprForLoop) {
        self.visit_attributes_mut(&mut repeated.attrs);
        self.visit_expr_mut(&mut repeated.expr);
        self.branch(|this| {
            this.visit_pat_mut(&mut repeated.pat);
            this.visit_block_mut(&mut repeated.body);
        });
    }

    /// The pattern comes with its guard, and before the code that it binds for.
    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let around = self.conditional;
        self.visit_attributes_mut(&mut arm.attrs);
        self.branch(|this| {
            this.visit_pat_mut(&mut arm.pat);
            this.visit_expr_mut(&mut arm.body);
        });
        self.conditional = around;
    }

    fn visit_expr_closure_mut(&mut self, closure: &mut ExprClosure) {
        self.branch(|this| visit_mut::visit_expr_closure_mut(this, closure));
    }

    fn visit_pat_ident_mut(&mut self, pat: &mut PatIdent) {
        self.hide(&pat.ident);
        if let Some((_, inner)) = &mut pat.subpat {
            self.visit_pat_mut(inner);
        }
    }

    fn visit_expr_path_mut(&mut self, path: &mut ExprPath) {
        if let Some(name) = path.path.get_ident().filter(|_| path.qself.is_none()) {
            self.use_name(&name.unraw().to_string());
        }
    }

    fn visit_expr_assign_mut(&mut self, assign: &mut ExprAssign) {
        self.visit_expr_mut(&mut assign.right);
        if !self.assign(&assign.left, false) {
            self.visit_expr_mut(&mut assign.left);
        }
    }

    fn visit_expr_binary_mut(&mut self, binary: &mut ExprBinary) {
        use syn::BinOp;
        let assigns = matches!(
            binary.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::MulAssign(_)
                | BinOp::DivAssign(_)
                | BinOp::RemAssign(_)
                | BinOp::BitXorAssign(_)
                | BinOp::BitAndAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::ShlAssign(_)
                | BinOp::ShrAssign(_)
        );
        if assigns {
            self.visit_expr_mut(&mut binary.right);
            if self.assign(&binary.left, true) {
                return;
            }
            return self.visit_expr_mut(&mut binary.left);
        }
        visit_mut::visit_expr_binary_mut(self, binary);
    }

    fn visit_lit_mut(&mut self, literal: &mut Lit) {
        if let Lit::Str(text) = literal
            && self.in_macro
        {
            self.format(&text.value());
        }
    }

    fn visit_token_stream_mut(&mut self, tokens: &mut TokenStream) {
        self.tokens(tokens.clone());
    }

    fn visit_macro_mut(&mut self, mac: &mut Macro) {
        self.macro_call(mac);
    }
}
