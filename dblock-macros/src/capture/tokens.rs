//! The uses inside a macro's arguments, and in code that is no Rust.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::visit_mut::VisitMut;
use syn::{Block, Expr, Macro, Pat, Token};

use super::Uses;

impl Uses {
    /// Arguments that are expressions or statements are read as such; others by their tokens.
    pub(super) fn macro_call(&mut self, mac: &Macro) {
        let name = mac.path.segments.last().map(|segment| segment.ident.to_string());
        let tokens = || mac.tokens.clone();
        let around = std::mem::replace(&mut self.in_macro, true);
        match name.as_deref() {
            // Their arguments are never evaluated.
            Some(
                "cfg" | "compile_error" | "concat" | "env" | "include" | "include_bytes" | "include_str"
                | "offset_of" | "option_env" | "stringify",
            ) => {}
            Some("matches" | "assert_matches" | "debug_assert_matches") => {
                match pattern_match.parse2(tokens()) {
                    Ok((mut value, mut pat, mut rest)) => self.scope(|this| {
                        this.visit_expr_mut(&mut value);
                        this.visit_pat_mut(&mut pat);
                        this.expressions(&mut rest);
                    }),
                    Err(_) => self.tokens(tokens()),
                }
            }
            _ => self.scope(|this| this.code(tokens(), false)),
        }
        self.in_macro = around;
    }

    /// In `name = value` and `group.name = value` the name is the macro's.
    fn expressions(&mut self, list: &mut [Expr]) {
        for expr in list {
            match expr {
                Expr::Assign(assign) if is_names(&assign.left) => {
                    self.visit_expr_mut(&mut assign.right);
                }
                expr => self.visit_expr_mut(expr),
            }
        }
    }

    /// Tokens do not show their scopes, so the first mention of a name decides for all of them.
    pub(super) fn tokens(&mut self, tokens: TokenStream) {
        self.scope(|this| this.group(tokens));
    }

    /// Code inside a macro: expressions or statements where it is such, tokens otherwise.
    fn code(&mut self, tokens: TokenStream, is_block: bool) {
        let statements = |tokens: &TokenStream| Block::parse_within.parse2(tokens.clone());
        if is_block && let Ok(mut statements) = statements(&tokens) {
            self.scope(|this| this.statements(&mut statements));
        } else if let Ok(list) = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens.clone()) {
            self.expressions(&mut list.into_iter().collect::<Vec<_>>());
        } else if let Ok(mut statements) = statements(&tokens) {
            self.scope(|this| this.statements(&mut statements));
        } else {
            self.group(tokens);
        }
    }

    fn group(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            if starts(&tokens[..at])
                && let Some((arm, behind)) = MacroArm::read(&tokens[at..])
            {
                self.macro_arm(arm);
                at += behind;
                continue;
            }
            if let Some(behind) = field_name(&tokens[..at], &tokens[at..]) {
                at += behind;
                continue;
            }
            match token {
                TokenTree::Group(group) => {
                    self.code(group.stream(), group.delimiter() == Delimiter::Brace);
                }
                TokenTree::Literal(literal) if literal.to_string().starts_with(['"', 'r']) => {
                    self.format(&literal.to_string());
                }
                TokenTree::Ident(name) => match mention(&tokens[..at], &tokens[at + 1..]) {
                    Some(Mention::Use) => self.use_name(&name.unraw().to_string()),
                    Some(Mention::Binding) => self.hide(name),
                    None => {}
                },
                _ => {}
            }
            at += 1;
        }
    }

    fn macro_arm(&mut self, mut arm: MacroArm) {
        for value in &mut arm.before {
            self.visit_expr_mut(value);
        }
        self.branch(|this| {
            this.visit_pat_mut(&mut arm.pat);
            if let Some(guard) = &mut arm.guard {
                this.visit_expr_mut(guard);
            }
            this.code(arm.body, arm.is_block);
        });
    }

    /// `{name}`, `{name:?}`, `{:name$}` and `{:.name$}` in what may be a format string.
    pub(super) fn format(&mut self, text: &str) {
        let text = text.replace("{{", "");
        for placeholder in text.split('{').skip(1) {
            let Some((inside, _)) = placeholder.split_once('}') else {
                continue;
            };
            let (name, spec) = inside.split_once(':').unwrap_or((inside, ""));
            self.use_name(name.trim());
            for (end, _) in spec.match_indices('$') {
                let before = spec[..end].trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
                self.use_name(&spec[before.len()..end]);
            }
        }
    }
}

/// `name` and `group.name`.
fn is_names(expr: &Expr) -> bool {
    match expr {
        Expr::Path(_) => true,
        Expr::Field(field) => is_names(&field.base),
        _ => false,
    }
}

/// How many tokens are the name in `name = value` or `group.name = value`, where that is an element of a list with
/// commas, as `tracing` has them.
fn field_name(before: &[TokenTree], tokens: &[TokenTree]) -> Option<usize> {
    if before.last().is_some_and(|token| !is_punct(token, ',')) {
        return None;
    }
    let name = |at: usize| matches!(tokens.get(at), Some(TokenTree::Ident(_)));
    let mark = |at: usize, mark| tokens.get(at).is_some_and(|token| is_punct(token, mark));
    let mut end = 1;
    while mark(end, '.') && name(end + 1) {
        end += 2;
    }
    let is_named = name(0) && mark(end, '=') && !mark(end + 1, '=') && !mark(end + 1, '>');
    let mut rest = tokens.iter();
    let stop = rest.find(|token| is_punct(token, ',') || is_punct(token, ';'));
    (is_named && stop.is_none_or(|stop| is_punct(stop, ','))).then_some(end)
}

/// `pattern => code`, `pattern if guard => code`, and `pattern = value, if condition => code` of `select!`.
struct MacroArm {
    pat: Pat,
    /// What is read before the pattern binds.
    before: Vec<Expr>,
    guard: Option<Expr>,
    body: TokenStream,
    is_block: bool,
}

impl MacroArm {
    /// The arm at the start of these tokens, and how many they are.
    fn read(tokens: &[TokenTree]) -> Option<(Self, usize)> {
        let arrow = tokens.windows(2).position(|two| {
            matches!(two, [TokenTree::Punct(first), TokenTree::Punct(second)]
                if first.as_char() == '=' && first.spacing() == Spacing::Joint && second.as_char() == '>')
        })?;
        let stream = |tokens: &[TokenTree]| tokens.iter().cloned().collect::<TokenStream>();
        let (pat, before, guard) = arm_head.parse2(stream(&tokens[..arrow])).ok()?;
        let rest = &tokens[arrow + 2..];
        let (length, body, is_block) = match rest.first() {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                (1, group.stream(), true)
            }
            _ => {
                let length = rest.iter().take_while(|token| !is_punct(token, ',')).count();
                (length, stream(&rest[..length]), false)
            }
        };
        let arm = Self {
            pat,
            before,
            guard,
            body,
            is_block,
        };
        Some((arm, arrow + 2 + length))
    }
}

/// What stands before the `=>` of an arm.
fn arm_head(input: ParseStream<'_>) -> syn::Result<(Pat, Vec<Expr>, Option<Expr>)> {
    let pat = Pat::parse_multi_with_leading_vert(input)?;
    let mut before = Vec::new();
    if input.parse::<Option<Token![=]>>()?.is_some() {
        before.push(input.parse()?);
        if input.parse::<Option<Token![,]>>()?.is_some() {
            input.parse::<Token![if]>()?;
            before.push(input.parse()?);
        }
        return Ok((pat, before, None));
    }
    let guard = match input.parse::<Option<Token![if]>>()? {
        Some(_) => Some(input.parse()?),
        None => None,
    };
    Ok((pat, before, guard))
}

/// Whether an arm may start behind these tokens.
fn starts(before: &[TokenTree]) -> bool {
    match before.last() {
        None => true,
        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
        Some(token) => is_punct(token, ',') || is_punct(token, ';'),
    }
}

fn is_punct(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// `value, pattern if guard, message…`
fn pattern_match(input: ParseStream<'_>) -> syn::Result<(Expr, Pat, Vec<Expr>)> {
    let value = input.parse()?;
    input.parse::<Token![,]>()?;
    let pat = Pat::parse_multi_with_leading_vert(input)?;
    let mut rest = Vec::new();
    while !input.is_empty() {
        input.parse::<Option<Token![if]>>()?;
        input.parse::<Option<Token![,]>>()?;
        if !input.is_empty() {
            rest.push(input.parse()?);
        }
    }
    Ok((value, pat, rest))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mention {
    Use,
    /// A pattern that binds the name anew.
    Binding,
}

/// How these tokens mention the name between them; `None` if it is a field, a label, a lifetime, a part of a
/// path, a macro or one of its variables.
fn mention(before: &[TokenTree], after: &[TokenTree]) -> Option<Mention> {
    let is = |token: Option<&TokenTree>, text: &str| token.is_some_and(|token| token.to_string() == text);
    let previous = |back: usize| before.len().checked_sub(back).map(|at| &before[at]);
    let joint = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.spacing() == Spacing::Joint);
    let field = is(previous(1), ".") && !is(previous(2), ".");
    let path = is(previous(1), ":") && is(previous(2), ":") && joint(previous(2));
    let named = is(after.first(), ":");
    let called = is(after.first(), "!") && matches!(after.get(1), Some(TokenTree::Group(_)));
    if field || path || named || called || is(previous(1), "'") || is(previous(1), "$") {
        return None;
    }
    if is(after.first(), "=") && (is(after.get(1), "%") || is(after.get(1), "?")) {
        // A field's name, as `tracing` has them.
        return None;
    }
    let any = |token, words: &[&str]| words.iter().any(|word| is(token, word));
    // Otherwise `|` is an operator.
    let closure = is(previous(1), "|")
        && (previous(2).is_none() || any(previous(2), &[",", ";", "=", ">", "move", "async", "return"]));
    let binding = closure || any(previous(1), &["let", "mut", "ref", "for", "fn"]);
    if (binding && !is(previous(2), "&")) || is_rebound(after) {
        return Some(Mention::Binding);
    }
    Some(Mention::Use)
}

/// `name @`, `name =>`, `name = value` and `name += value`. The last two, because a lint warns about an
/// argument that is only assigned, and another mention would confuse the lint.
fn is_rebound(after: &[TokenTree]) -> bool {
    let mut operator = String::new();
    for token in after {
        let TokenTree::Punct(punct) = token else { break };
        operator.push(punct.as_char());
        if punct.spacing() == Spacing::Alone {
            break;
        }
    }
    matches!(
        operator.as_str(),
        "@" | "=>" | "=" | "+=" | "-=" | "*=" | "/=" | "%=" | "&=" | "|=" | "^=" | "<<=" | ">>="
    )
}
