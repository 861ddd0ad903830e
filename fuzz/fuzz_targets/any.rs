//! The target that `HOLDFAST_FUZZ` names. Its samples and its corpus are written to the directory `HOLDFAST_FUZZ_SAMPLES`
//! first.
#![no_main]

use holdfast_fuzz::Target;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("HOLDFAST_FUZZ").unwrap_or_default();
    let known = || holdfast_fuzz::targets().map(|target| target.name).collect::<Vec<_>>().join(", ");
    holdfast_fuzz::target(&name).unwrap_or_else(|| panic!("HOLDFAST_FUZZ is '{name}', not one of {}", known()))
});

fn write_samples() {
    let Some(directory) = std::env::var_os("HOLDFAST_FUZZ_SAMPLES") else { return };
    for (number, sample) in TARGET.kept().iter().enumerate() {
        let file = std::path::Path::new(&directory).join(format!("sample-{number}"));
        std::fs::write(file, sample).expect("a sample is written");
    }
}

fuzz_target!(init: write_samples(), |bytes: &[u8]| {
    (TARGET.run)(bytes);
});
