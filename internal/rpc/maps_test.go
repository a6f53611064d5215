package rpc

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestMapsKeepsDescriptorsOfOneNameApart(t *testing.T) {
	withMap := new(structpb.Struct).ProtoReflect().Descriptor()
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("other.proto"), Package: proto.String("google.protobuf"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Struct")}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	without := file.Messages().Get(0)
	if withMap.FullName() != without.FullName() {
		t.Fatalf("the names are %s and %s", withMap.FullName(), without.FullName())
	}
	for _, order := range [][]protoreflect.MessageDescriptor{{withMap, without}, {without, withMap}} {
		var m Maps
		for range 2 {
			for _, d := range order {
				if got := m.In(d); got != (d == withMap) {
					t.Errorf("a map in %s of %s: %v", d.FullName(), d.ParentFile().Path(), got)
				}
			}
		}
	}
}
