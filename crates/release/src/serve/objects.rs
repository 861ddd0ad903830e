//! Blocks by address (the paper's `getdata`), found through the index that `root` names.
//!
//! The index is as little trusted as everything else here: a wrong one leads to wrong bytes, which the client sees.

use super::files::{Content, Files, Found, Trouble, Wait};
use super::part::Part;
use crate::index::{Head, Sizes, key_of};
use crate::record::RootFile;
use crate::{form, layout, pack};
use holdfast_crypto::Digest;
use hyper::header::HeaderValue;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// A head of an index that is longer is not kept in memory: enough for half a billion blocks.
const HEAD_BYTES_MAX: u64 = 64 << 20;

/// The blocks of the release that is served now.
#[derive(Default)]
pub struct Objects(Mutex<Option<Arc<Indexed>>>);

/// The index of one record.
struct Indexed {
    /// The tag of the `root` that names it.
    root: HeaderValue,
    file: Arc<Found>,
    head: Head,
}

impl Objects {
    /// The stored block of `address`; `None` if the release has none.
    ///
    /// # Errors
    /// [`Trouble`]; also if `root` or the index are damaged, or the index is not there.
    pub fn find(&self, files: &Files, address: &Digest, wait: Wait) -> Result<Option<Part>, Trouble> {
        let indexed = self.indexed(files, wait)?;
        let key = key_of(address);
        let range = indexed.head.range_of(&key);
        if range.is_empty() {
            return Ok(None);
        }
        let entries = indexed.file.read(range, wait)?;
        let Some(place) = indexed.head.find(&entries, &key) else { return Ok(None) };
        let pack = &indexed.head.packs[place.pack as usize].digest;
        let Some(file) = files.get(&layout::pack(pack), wait)? else {
            return Err(broken("the index names a pack that is not there"));
        };
        let begin = u64::from(place.offset);
        let frame =
            begin + (pack::HEADER_BYTES as u64).min(place.bytes.into())..begin + u64::from(place.bytes);
        let etag = HeaderValue::try_from(format!("\"{address}\"")).map_err(io::Error::other)?;
        match Part::of(file, frame, etag) {
            Some(part) => Ok(Some(part)),
            None => Err(broken("a pack is shorter than the index says")),
        }
    }

    fn indexed(&self, files: &Files, wait: Wait) -> Result<Arc<Indexed>, Trouble> {
        let Some(root) = files.get(layout::ROOT, wait)? else { return Err(broken("there is no root")) };
        let known = self.0.lock().clone();
        if let Some(known) = known.filter(|known| known.root == root.etag) {
            return Ok(known);
        }
        if wait == Wait::No {
            return Err(Trouble::WouldWait);
        }
        let Content::Memory(bytes) = &root.content else { return Err(broken("root is too long")) };
        let location = form::read::<RootFile>(bytes).map_err(|error| broken(&error.to_string()))?.index;
        let Some(file) = files.get(&layout::index(&location.digest), wait)? else {
            return Err(broken("the index that root names is not there"));
        };
        let bad = |error: crate::index::BadIndex| broken(&error.to_string());
        let fixed = (crate::index::FIXED_BYTES as u64).min(file.bytes);
        let sizes = Sizes::read(&file.read(0..fixed, wait)?).map_err(bad)?;
        if sizes.bytes() != file.bytes || sizes.head_bytes() > HEAD_BYTES_MAX {
            return Err(broken("the index is too long, or not as long as it says"));
        }
        let head = Head::read(&file.read(0..sizes.head_bytes(), wait)?).map_err(bad)?;
        let indexed = Arc::new(Indexed { root: root.etag.clone(), file, head });
        *self.0.lock() = Some(indexed.clone());
        Ok(indexed)
    }
}

fn broken(why: &str) -> Trouble {
    Trouble::Failed(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()))
}
