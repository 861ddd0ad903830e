//! The names of a parcel's bases.
//!
//! An address has 32 bytes, and what is new in a block often not many more. So old blocks that one node of an
//! older version refers to are named by their positions in that node: a few bytes each.
//!
//! Attack answered: a few bytes that name very many blocks. The named blocks are counted before anything is
//! looked up, and at most [`PARCEL_NODES_MAX`] nodes are looked up.

use super::{PARCEL_BASES_MAX, ParcelError, within};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Digest;

/// Most nodes through which the bases of a parcel are named.
pub const PARCEL_NODES_MAX: usize = 256;

/// One base, or several that hang from one node.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Base {
    /// A block.
    Block(Digest),
    /// Blocks that a node refers to.
    Under {
        /// The node.
        node: Digest,
        /// Positions of references in the node, as ascending runs.
        runs: Vec<Run>,
    },
}

/// References of a node that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Run {
    /// Number of references left out since the last run, or since the beginning.
    pub skipped: u16,
    /// Number of references in the run.
    pub count: u16,
}

/// Why names could not be followed.
#[derive(Debug, PartialEq, Eq)]
pub enum BaseError<E> {
    /// This node is not here.
    Missing(Digest),
    /// The names break the format.
    Bad(ParcelError),
    /// The node could not be read.
    Unread(E),
}

impl From<Digest> for Base {
    fn from(address: Digest) -> Base {
        Base::Block(address)
    }
}

impl PartialEq<Digest> for Base {
    fn eq(&self, address: &Digest) -> bool {
        matches!(self, Base::Block(own) if own == address)
    }
}

impl Base {
    /// Number of blocks that these name.
    pub fn count(bases: &[Base]) -> usize {
        let of = |base: &Base| match base {
            Base::Block(_) => 1,
            Base::Under { runs, .. } => runs.iter().map(|run| usize::from(run.count)).sum(),
        };
        bases.iter().map(of).sum()
    }

    /// About how many bytes they take in a message.
    pub fn message_bytes(bases: &[Base]) -> usize {
        let of = |base: &Base| match base {
            Base::Block(_) => 33,
            Base::Under { runs, .. } => 37 + 4 * runs.len(),
        };
        bases.iter().map(of).sum()
    }

    /// Names blocks in their order; `place_of` returns the node that refers to a block and the index of the
    /// reference, if they are known.
    pub fn name(addresses: &[Digest], place_of: impl Fn(&Digest) -> Option<(Digest, u16)>) -> Vec<Base> {
        let mut bases: Vec<Base> = Vec::new();
        // Node, its runs, the place after the last, and where its blocks begin in `addresses`.
        let mut open: Option<(Digest, Vec<Run>, u16, usize)> = None;
        let mut nodes = 0;
        let mut close = |open: Option<(Digest, Vec<Run>, u16, usize)>, end: usize, bases: &mut Vec<Base>| {
            let Some((node, runs, _, begin)) = open else { return };
            if end - begin < 2 || nodes == PARCEL_NODES_MAX {
                bases.extend(addresses[begin..end].iter().copied().map(Base::Block));
            } else {
                nodes += 1;
                bases.push(Base::Under { node, runs });
            }
        };
        for (at, address) in addresses.iter().enumerate() {
            let place = place_of(address).filter(|(_, place)| *place < u16::MAX);
            match (&mut open, place) {
                (Some((node, runs, next, _)), Some((of, place))) if *node == of && place >= *next => {
                    match runs.last_mut() {
                        Some(last) if place == *next => last.count += 1,
                        _ => runs.push(Run { skipped: place - *next, count: 1 }),
                    }
                    *next = place + 1;
                }
                (_, place) => {
                    close(open.take(), at, &mut bases);
                    match place {
                        Some((node, place)) => {
                            open = Some((node, vec![Run { skipped: place, count: 1 }], place + 1, at));
                        }
                        None => bases.push(Base::Block(*address)),
                    }
                }
            }
        }
        close(open.take(), addresses.len(), &mut bases);
        bases
    }

    /// Checks everything that can be checked without looking anything up.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn check(bases: &[Base]) -> Result<(), ParcelError> {
        within("bases", Base::count(bases), PARCEL_BASES_MAX)?;
        let nodes = bases.iter().filter(|base| matches!(base, Base::Under { .. })).count();
        within("nodes of bases", nodes, PARCEL_NODES_MAX)
    }

    /// The addresses of the named blocks, in order; `references` returns the references of a node.
    ///
    /// # Errors
    /// [`BaseError`].
    pub fn addresses<E>(
        bases: &[Base],
        mut references: impl FnMut(&Digest) -> Result<Option<Vec<Digest>>, E>,
    ) -> Result<Vec<Digest>, BaseError<E>> {
        Base::check(bases).map_err(BaseError::Bad)?;
        let mut addresses = Vec::with_capacity(Base::count(bases));
        for base in bases {
            match base {
                Base::Block(address) => addresses.push(*address),
                Base::Under { node, runs } => {
                    let all =
                        references(node).map_err(BaseError::Unread)?.ok_or(BaseError::Missing(*node))?;
                    let mut at = 0;
                    for run in runs {
                        let begin = at + usize::from(run.skipped);
                        at = begin + usize::from(run.count);
                        let some = all.get(begin..at).ok_or(BaseError::Bad(ParcelError::Malformed(
                            "a base is a place that its node has not",
                        )))?;
                        addresses.extend(some);
                    }
                }
            }
        }
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::convert::Infallible;

    fn digest(number: u16) -> Digest {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        Digest(bytes)
    }

    /// Nodes 1000, 1001, ... with the given children.
    fn tree(children: &[&[u16]]) -> HashMap<Digest, Vec<Digest>> {
        let node =
            |(at, of): (usize, &&[u16])| (digest(1000 + at as u16), of.iter().map(|n| digest(*n)).collect());
        children.iter().enumerate().map(node).collect()
    }

    fn named(tree: &HashMap<Digest, Vec<Digest>>, addresses: &[Digest]) -> Vec<Base> {
        Base::name(addresses, |address| {
            tree.iter().find_map(|(node, children)| {
                Some((*node, children.iter().position(|child| child == address)? as u16))
            })
        })
    }

    fn back(
        tree: &HashMap<Digest, Vec<Digest>>,
        bases: &[Base],
    ) -> Result<Vec<Digest>, BaseError<Infallible>> {
        Base::addresses(bases, |node| Ok(tree.get(node).cloned()))
    }

    /// Proves: names lead back to the blocks in their order, and blocks of one node take few bytes.
    #[test]
    fn names_lead_back() {
        let wide: Vec<u16> = (100..400).collect();
        let tree = tree(&[&wide, &[1, 2, 3], &[7]]);
        let cases: [Vec<u16>; 7] = [
            vec![],
            wide.clone(),
            wide.iter().copied().step_by(3).collect(),
            vec![1, 3, 2],
            vec![7, 50, 1, 2, 51, 3],
            vec![3, 2, 1],
            vec![399, 1, 100, 399],
        ];
        for case in cases {
            let addresses: Vec<Digest> = case.iter().map(|n| digest(*n)).collect();
            let bases = named(&tree, &addresses);
            assert_eq!(back(&tree, &bases).unwrap(), addresses, "{case:?}");
            assert_eq!(Base::count(&bases), case.len());
            assert_eq!(holdfast_crypto::encode(&bases).len(), Base::message_bytes(&bases) + 4);
        }
        let all: Vec<Digest> = wide.iter().map(|n| digest(*n)).collect();
        assert_eq!(Base::message_bytes(&named(&tree, &all)), 41);
    }

    /// Proves: no more nodes are named than the limit; the other blocks are named one by one.
    #[test]
    fn many_nodes() {
        let children: Vec<[u16; 2]> = (0..300).map(|n| [2 * n, 2 * n + 1]).collect();
        let children: Vec<&[u16]> = children.iter().map(|pair| &pair[..]).collect();
        let tree = tree(&children);
        let addresses: Vec<Digest> = (0..600).map(digest).collect();
        let bases = named(&tree, &addresses);
        assert_eq!(bases.len(), PARCEL_NODES_MAX + 2 * (300 - PARCEL_NODES_MAX));
        assert_eq!(back(&tree, &bases).unwrap(), addresses);
    }

    /// Proves: names of too many blocks are refused before anything is looked up, and names of nothing are
    /// reported.
    #[test]
    fn names_that_are_refused() {
        let tree = tree(&[&[1, 2, 3]]);
        let under = |skipped, count| Base::Under { node: digest(1000), runs: vec![Run { skipped, count }] };
        let never = |_: &Digest| -> Result<Option<Vec<Digest>>, Infallible> { panic!("looked up") };
        for bases in [vec![under(0, 4097)], vec![under(0, 3); 257], vec![under(0, u16::MAX); 4096]] {
            let refused = Base::addresses(&bases, never);
            assert!(matches!(refused, Err(BaseError::Bad(ParcelError::TooLarge { .. }))), "{refused:?}");
        }
        for bases in [under(1, 3), under(u16::MAX, 1), under(3, 1)] {
            assert!(matches!(back(&tree, &[bases]), Err(BaseError::Bad(ParcelError::Malformed(_)))));
        }
        let elsewhere = Base::Under { node: digest(9), runs: vec![] };
        assert_eq!(back(&tree, &[elsewhere]), Err(BaseError::Missing(digest(9))));
    }
}
