//! The service `shop.Orders`. With a `.proto` file and `protoc` this would be one call of
//! `tonic-prost-build`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let settle = Method::builder()
        .name("settle")
        .route_name("Settle")
        .input_type("crate::SettleRequest")
        .output_type("crate::SettleReply")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let orders = Service::builder()
        .package("shop")
        .name("Orders")
        .method(settle)
        .build();
    Builder::new().compile(&[orders]);
}
