use super::*;

fn names(body: &str) -> String {
    let sig: Signature = syn::parse_str("async fn f(&self, a: A, (b, c): (B, C), r#type: u8)").unwrap();
    let body: TokenStream = body.parse().unwrap();
    let used = used(&sig, &Scope::new(&sig), &body);
    let names: Vec<_> = used.iter().map(|name| name.unraw().to_string()).collect();
    names.join(" ")
}

#[test]
fn used_arguments_come_from_the_last_to_the_first() {
    for (body, used) in [
        ("self.go(a); c + b", "c b a self"),
        ("r#type", "type"),
        ("if x { loop { a } }", "a"),
        ("0..a", "a"),
        ("Point { a: 1, b }", "b"),
        ("g(&mut a, b as u8)", "b a"),
        ("a == A", "a"),
        ("move || async { a }", "a"),
        ("S { x, ..a }", "a"),
        ("*a = 1; b.x = 2; c[0] = 3", "c b a"),
    ] {
        assert_eq!(names(body), used, "{body}");
    }
}

#[test]
fn a_name_is_read_with_its_scope() {
    for (body, used) in [
        ("let a = 1; a + 1", ""),
        ("let a = a;", "a"),
        ("let (a, _) = b; a", "b"),
        ("let Some(a) = b else { return c }; a", "c b"),
        ("{ let a = 1; } a", "a"),
        ("if let Some(a) = b { a } else { 0 }", "b"),
        ("if let Some(a) = b { a } else { a }", "b a"),
        ("if let Some(a) = x && a > 0 { a }", ""),
        ("while let Some(a) = a.next() { a }", "a"),
        ("for a in b { a } a", "b a"),
        ("match b { Some(a) if a > 0 => a, a @ 1 => a, _ => 0 }", "b"),
        ("match b { A { a, .. } | B(a) => a, C { a: c } => a + c }", "b a"),
        ("v.map(|a| a + 1)", ""),
        ("v.map(|(a, b): (A, B)| c)", "c"),
        ("fn a() {} a()", ""),
        ("fn inner(x: u8) { a }", ""),
        ("const b: u8 = 1; b", ""),
        ("static b: u8 = 1; b", ""),
        ("#[allow(x)] let x = a;", "a"),
        ("use x::a; a()", ""),
        ("use x::{c as b, y::{a, Z}}; a(b).await; c", "c"),
    ] {
        let mut used: Vec<_> = used.split(' ').collect();
        used.sort_by_key(|name| std::cmp::Reverse(*name));
        assert_eq!(names(body), used.join(" "), "{body}");
    }
}

#[test]
fn what_looks_like_a_name_is_none() {
    for body in [
        "",
        "x.a; y.b()",
        "a::b(); <a as T>::b; b::<c>::x",
        "let x: a = 1;",
        "'a: loop { break 'a }",
        "\"{a}\"",
        "#[doc = \"{a}\"] /** {b} */ let x = 1;",
        "concat!(\"{a}\", stringify!(b)); cfg!(a); offset_of!(T, b)",
        "#[cfg(unix)] let x = a; #[cfg(unix)] { a }",
        "a!(); m!(a = 1); m!(x.a, a::b, '{', 'a)",
        "matches!(x, Some(a) if a > 0)",
        "format!(\"{{a}} {a_b}\")",
        "select! { a = x => { a } }",
        "info!(a.id = %x)",
        "info!(a.b.c = ?x, \"text\")",
        "info!(target: \"t\", a.id = x, b.c = %y, \"text\")",
        "info!(x.y = 1, a.id = 2)",
        "info!(parent: &x, a.id = %y)",
        "info!(a = %x, b = y)",
        "span!(Level::INFO, \"n\", a.id = %x, b = Empty)",
    ] {
        assert_eq!(names(body), "", "{body}");
    }
}

#[test]
fn the_arguments_of_a_macro_are_read_too() {
    for (body, used) in [
        (r#"println!("{a} {b:?} {{c}}")"#, "b a"),
        (r#"println!("{:a$} {x:.b$}", 1)"#, "b a"),
        (r##"println!(r#"{type}"#)"##, "type"),
        (r#"format!("{x}", x = a)"#, "a"),
        ("vec![a; b]", "b a"),
        ("m!(let a = b; a)", "b"),
        ("m!({\"k\": a})", "a"),
        ("info!(%a, b = ?c)", "c a"),
        ("matches!(a, Some(b) if b > c)", "c a"),
        ("assert_eq!(v.map(|a| a), [b])", "b"),
        ("select! { x = a.next() => { self.go(x) } }", "a self"),
        ("info!(a = %a.id, b = ?c, x =% 1)", "c a"),
        ("info!(%x, b = 1, a | c)", "c a"),
        ("info!(a = a, b = %c)", "c a"),
        ("info!(a.id = %a.id, b.id, \"text\")", "b a"),
        ("info!(b.id = a.id)", "a"),
        ("m!({ a.id = 1; })", "a"),
        ("m!(=> { a.id = 1 })", "a"),
        ("m!(=> (a.id = 1))", ""),
        ("m!(*a = b)", "b a"),
        ("m!(=> x, a.0 = b)", "b a"),
        ("m!(#, a.b => c)", "c a"),
        ("m!(# b => x, b)", ""),
        ("m!(# (x) b => y, b)", ""),
        ("m! { x => {} b => y, b }", "b"),
        ("m!(# a + (x))", "a"),
        ("m!(# a = %x; a)", "a"),
        ("m!(|a| # a)", ""),
        ("m!(# let a; a)", ""),
        ("m!(# &mut a)", "a"),
        ("m!(#, a.id = 1; b)", "b a"),
        ("select! { a = c => (g)(a), }", "c"),
        ("m!(=> \"{a}\")", "a"),
        ("m!(=> b\"{a}\")", ""),
        ("m!(a == b, c % 1 => 2)", "c b a"),
        ("select! { m = c.recv() => { if let Some(a) = m { g(a) } } }", "c"),
        (
            "select! { Some(a) = c.recv(), if b => { g(a) } else => a }",
            "c b a",
        ),
        (
            "select! { biased; m = c => { let (a, _) = m; a } x = y => { v.map(|(b, d)| b) } }",
            "c",
        ),
        (
            "select! { A { a, .. } = c => g(a), m = d => match m { Some(b) => b, _ => 0 }, }",
            "c",
        ),
        ("m! { a => { a } b => c }", "c"),
        ("m! { x => { a } }", "a"),
        ("builtin # of_a_newer_compiler(a)", "a"),
        ("macro_rules! m { ($b:expr) => { $b + a } } m!(1)", "a"),
    ] {
        assert_eq!(names(body), used, "{body}");
    }
}

/// A lint tells that nobody read it, and another mention would confuse the lint.
#[test]
fn an_argument_that_is_overwritten_first_is_left_alone() {
    assert_eq!(names("a = A; b += 1; a"), "");
    assert_eq!(names("a += 1; if x { b = B; } a + b"), "b a");
    assert_eq!(names("a = a + 1"), "a");
    assert_eq!(names("if x { y } a = A; a"), "");
}

#[test]
fn half_typed_code_is_judged_by_its_tokens() {
    assert_eq!(names("let x = a. ; let b = 1; b"), "a");
}

#[test]
fn conditional_arguments_are_left_alone() {
    let sig: Signature = syn::parse_str("async fn f(#[cfg(unix)] a: A, b: B)").unwrap();
    assert!(used(&sig, &Scope::new(&sig), &"a; b".parse().unwrap()).is_empty());
}

/// Each token is read once, however many arguments there are: this would take minutes otherwise.
#[test]
fn long_code_is_no_trouble() {
    let arguments: Vec<_> = (0..500).map(|n| format!("a{n}: u8,")).collect();
    let sig: Signature = syn::parse_str(&format!("async fn f({})", arguments.concat())).unwrap();
    let body: Vec<_> = (0..10_000)
        .map(|n| format!("let a{} = 1; m!(\"{{x}}\", {{ x => 1 }});", n % 500))
        .collect();
    let used = used(&sig, &Scope::new(&sig), &body.concat().parse().unwrap());
    assert_eq!(used, [""; 0]);
}
