//! Shrunk failures of the model test, each with what was wrong.

use super::super::*;
use super::model::check;
use super::reference::Op;

/// Zeroing beyond the end without growing the file grew it to where the range began.
#[test]
fn regression_keep_size_beyond_the_end() {
    let create = Op::Create { path: b"a".to_vec(), exclusive: false, truncate: false, append: false };
    let zero = Op::Allocate { slot: 0, at: 1, length: 1, how: Allocate::ZeroRangeKeepSize };
    check(&[create, zero]).unwrap();
}

/// A released file stayed in the table of nodes forever.
#[test]
fn regression_released_files_are_forgotten() {
    let create = Op::Create { path: b"b".to_vec(), exclusive: false, truncate: false, append: false };
    check(&[Op::Mkdir(b"a".to_vec()), create]).unwrap();
}

/// A file open for writing showed its former link count after one of its names was removed.
#[test]
fn regression_links_of_an_open_file() {
    let create = Op::Create { path: b"a".to_vec(), exclusive: false, truncate: false, append: false };
    let link = Op::Link(b"a".to_vec(), b"b".to_vec());
    check(&[create, link, Op::Unlink(b"a".to_vec()), Op::Fstat(0)]).unwrap();
}
