//! A lying server: whatever it shows, nobody accepts two things that cannot both be true.

use crate::small_configurations_are_as_expected;
use holdfast_model::configurations::What;

/// Every small configuration comes to what is expected of it.
#[test]
fn small_configurations() {
    small_configurations_are_as_expected(|what| matches!(what, What::Lying(_)));
}
