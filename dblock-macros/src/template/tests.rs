use super::*;

fn scope() -> Scope {
    let sig: syn::Signature =
        syn::parse_quote!(async fn f(&self, order_id: u64, Path(user): Path<u64>, r#type: u8));
    Scope::new(&sig)
}

fn read(text: &str) -> Result<(String, Vec<String>), String> {
    let literal = LitStr::new(text, Span::call_site());
    match parse(&literal, &scope()) {
        Ok(template) => Ok((
            template.format.value(),
            template
                .values
                .iter()
                .map(|value| value.to_token_stream().to_string().replace(' ', ""))
                .collect(),
        )),
        Err(refused) => Err(refused
            .error
            .into_iter()
            .map(|error| error.to_string())
            .collect::<Vec<_>>()
            .join("\n")),
    }
}

#[test]
fn placeholders_become_expressions() {
    for (text, format, values) in [
        ("fixed", "fixed", vec![]),
        ("o:{order_id}", "o:{}", vec!["order_id"]),
        (
            "{self.tenant}/{order_id:08}",
            "{}/{:08}",
            vec!["self.tenant", "order_id"],
        ),
        ("{self.a.0.1.b()}", "{}", vec!["self.a.0.1.b()"]),
        ("{user:?}", "{:?}", vec!["user"]),
        ("{type}{r#type}", "{}{}", vec!["r#type", "r#type"]),
        (
            "{user.type}{user.match()}",
            "{}{}",
            vec!["user.r#type", "user.r#match()"],
        ),
        ("{{{order_id}}}", "{{{}}}", vec!["order_id"]),
        ("{REGION}", "{REGION}", vec![]),
        (
            "{REGION:>4}{order_id:08}{order_id}",
            "{REGION:>4}{order_id:08}{order_id}",
            vec!["order_id=order_id"],
        ),
        ("{REGION}{user.id}", "{}{}", vec!["REGION", "user.id"]),
        ("{user:*^+#08.3x?}", "{:*^+#08.3x?}", vec!["user"]),
        (
            "{user:é>5}{user:<}{user:x}",
            "{:é>5}{:<}{:x}",
            vec!["user", "user", "user"],
        ),
        ("клю́ч:{ order_id }", "клю́ч:{}", vec!["order_id"]),
    ] {
        let values = values.into_iter().map(String::from).collect();
        assert_eq!(read(text), Ok((format.to_owned(), values)), "{text}");
    }
}

#[test]
fn mistakes_come_with_their_fix() {
    for (text, hint) in [
        ("", "the key is empty"),
        ("a\0b", "NUL"),
        ("{}", "write it with its name, such as `{order_id}`"),
        ("{order_id}:{}", "such as `{user}`"),
        ("{:?}", "names no argument"),
        ("{0}", "such as `{order_id}`"),
        (
            "{oder_id}",
            "did you mean `order_id`? The arguments are `self`, `order_id`, `user` and `type`",
        ),
        ("{order}", "did you mean `order_id`?"),
        ("{order_id", "not closed"),
        ("{order_id{", "not closed"),
        ("order_id}", "without a `{`"),
        ("{order_id + 1}", "is not a placeholder"),
        ("{order_id.max(1)}", "is not a placeholder"),
        ("{std::mem}", "is not a placeholder"),
        ("{order_id:.*}", "takes its width from another argument"),
        ("{order_id:w$}", "takes its width from another argument"),
        ("{order_id:zz}", "`zz` in `{order_id:zz}` is not a format"),
        ("{order_id:08n}", "is not a format"),
        (&"k".repeat(256), "has 256 bytes"),
    ] {
        let message = read(text).unwrap_err();
        assert!(message.contains(hint), "{text}: {message}");
    }
}

#[test]
fn the_longest_key_is_accepted() {
    assert!(read(&"k".repeat(255)).is_ok());
}

#[test]
fn all_mistakes_of_a_template_are_reported() {
    let message = read("{} {nobody} {order_id").unwrap_err();
    assert_eq!(message.lines().count(), 3, "{message}");
}

#[test]
fn the_compiler_points_at_a_brace_only_where_it_reads_the_same() {
    for (text, points) in [
        ("a{order_id", true),
        ("{order_id} }", true),
        ("{self.a} }", false),
        ("{self.a", false),
        ("\0{order_id", false),
    ] {
        let refused = parse(&LitStr::new(text, Span::call_site()), &scope()).unwrap_err();
        assert_eq!(refused.compiler_points_inside, points, "{text}");
    }
}
