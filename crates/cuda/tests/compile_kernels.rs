//! Every kernel text compiles for the oldest supported architecture and for Hopper, without a
//! GPU. Where NVRTC is not found the test says so and passes: builds need no CUDA.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use temper_cuda::Family;
use temper_cuda::libraries::{Library, LibraryFolders};
use temper_cuda::nvrtc::{Target, compile_image};

#[test]
fn every_family_compiles() {
    if LibraryFolders::from_environment()
        .load(Library::Nvrtc)
        .is_none()
    {
        eprintln!("NVRTC is not here: no kernel was compiled");
        return;
    }
    for card in [(8, 0), (9, 0)] {
        let target = Target::choose(card, &[80, 90]).unwrap();
        for family in Family::ALL {
            let image = compile_image(family.name(), &family.source(), &[], target).unwrap();
            assert!(!image.is_empty(), "{} for {card:?}", family.name());
        }
    }
}
