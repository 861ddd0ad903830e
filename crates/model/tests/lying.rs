//! A lying server: whatever it shows, nobody accepts two things that cannot both be true.

use crate::small_configurations_are_as_expected;
use holdfast_model::configurations::What;

/// Proves: every small configuration has the expected verdict.
#[test]
fn small_configurations() {
    small_configurations_are_as_expected(|what| matches!(what, What::Lying(_)));
}
