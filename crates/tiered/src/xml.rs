//! The few elements that are read of a store's answers. What is not there is not there; nothing panics.

/// What is between the first `<name>` and its end.
pub(crate) fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.find(&format!("<{name}>"))? + name.len() + 2;
    let length = text[start..].find(&format!("</{name}>"))?;
    Some(&text[start..start + length])
}

/// All elements of this name, in order.
pub(crate) fn elements<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find(&open) {
        let after = &rest[start + open.len()..];
        let Some(length) = after.find(&close) else { break };
        found.push(&after[..length]);
        rest = &after[length + close.len()..];
    }
    found
}

/// Code and message of a refusal, without control characters; empty if it has none.
pub fn refusal_of(body: &[u8]) -> (String, String) {
    let body = String::from_utf8_lossy(&body[..body.len().min(16 << 10)]);
    let part = |name| -> String {
        let part = element(&body, name).map(text).unwrap_or_default();
        part.chars().filter(|c| !c.is_control()).take(200).collect()
    };
    (part("Code"), part("Message"))
}

/// Text with the five entities resolved.
pub(crate) fn text(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&apos;", "'")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: elements are found, and text that ends too early yields what was whole.
    #[test]
    fn elements_are_found() {
        let list = "<R><IsTruncated>true</IsTruncated><Contents><Key>a&amp;b</Key></Contents><Contents><Key>c</Key></Contents><Contents><Key>d";
        assert_eq!(element(list, "IsTruncated"), Some("true"));
        let keys: Vec<_> =
            elements(list, "Contents").into_iter().map(|one| text(element(one, "Key").unwrap())).collect();
        assert_eq!(keys, ["a&b", "c"]);
        assert_eq!(element(list, "Missing"), None);
        assert!(elements("</Contents><Contents>", "Contents").is_empty());
    }
}
