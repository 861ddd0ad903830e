//! Rules for publishing: which names to leave out, and which directories are opaque.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The rules for paths of the tree.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    excluded: GlobSet,
    opaque: GlobSet,
    opaque_patterns: Vec<String>,
}

/// The error that a text is not a pattern.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{pattern:?} is no pattern: {why}")]
pub struct BadPattern {
    /// The pattern as it was given.
    pub pattern: String,
    /// What is wrong.
    pub why: String,
}

impl Rules {
    /// Rules from patterns for paths relative to the tree: `*` and `?` within a name, `**` across names,
    /// `[...]` and `{a,b}`. A pattern without a slash applies to names in every directory.
    ///
    /// # Errors
    /// [`BadPattern`].
    pub fn new(excluded: &[String], opaque: &[String]) -> Result<Rules, BadPattern> {
        Ok(Rules { excluded: set(excluded)?, opaque: set(opaque)?, opaque_patterns: opaque.to_vec() })
    }

    /// The patterns of opaque directories.
    pub fn opaque(&self) -> &[String] {
        &self.opaque_patterns
    }

    /// Whether a path is left out, with everything below it.
    pub fn is_excluded(&self, path: &[u8]) -> bool {
        self.excluded.is_match(as_path(path))
    }

    /// Whether a directory is opaque: listing it returns only names that were used before. `""` is the root.
    pub fn is_opaque(&self, path: &[u8]) -> bool {
        self.opaque.is_match(as_path(if path.is_empty() { b"." } else { path }))
    }
}

fn as_path(path: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(path).as_ref()
}

fn set(patterns: &[String]) -> Result<GlobSet, BadPattern> {
    let mut builder = GlobSetBuilder::new();
    let bad = |pattern: &str, why: &globset::Error| BadPattern {
        pattern: pattern.to_owned(),
        why: why.kind().to_string(),
    };
    for pattern in patterns {
        let trimmed = pattern.trim_matches('/');
        let anywhere = format!("**/{trimmed}");
        let whole = if trimmed.contains('/') || trimmed == "." { trimmed } else { &anywhere };
        let glob = GlobBuilder::new(whole).literal_separator(true).backslash_escape(true).build();
        builder.add(glob.map_err(|error| bad(pattern, &error))?);
    }
    builder.build().map_err(|error| bad("", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: patterns match as `Rules::new` describes.
    #[test]
    fn patterns() {
        let rules = Rules::new(
            &["*.o".into(), "/build".into(), "docs/*.tmp".into(), "a/**/z".into()],
            &["names".into(), ".".into()],
        )
        .unwrap();
        for path in ["x.o", "deep/er/x.o", "build", "sub/build", "docs/x.tmp", "a/b/c/z", "a/z"] {
            assert!(rules.is_excluded(path.as_bytes()), "{path}");
        }
        for path in ["x.oo", "docs/deep/x.tmp", "other/x.tmp", "z", "names"] {
            assert!(!rules.is_excluded(path.as_bytes()), "{path}");
        }
        assert!(rules.is_excluded(b"not UTF-8 \xff.o"));
        assert!(rules.is_opaque(b"") && rules.is_opaque(b"names") && !rules.is_opaque(b"other"));
        assert!(Rules::new(&["[".into()], &[]).is_err());
    }
}
