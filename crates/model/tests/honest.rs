//! An honest server: no interleaving looks like an attack, loses anything, or leaves anybody stuck.

use crate::small_configurations_are_as_expected;
use holdfast_model::configurations::What;

/// Proves: every small configuration has the expected verdict.
#[test]
fn small_configurations() {
    small_configurations_are_as_expected(|what| matches!(what, What::Honest(_)));
}
