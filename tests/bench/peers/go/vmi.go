package main

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VirtualMachineInstance with the fields that the measured objects have, and no others: KubeVirt's own type has ten
// times as many, so its informers are no faster than this one.
type VirtualMachineInstance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              vmiSpec   `json:"spec"`
	Status            vmiStatus `json:"status,omitempty"`
}

type VirtualMachineInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstance `json:"items"`
}

type named struct {
	Name string `json:"name"`
}

type empty struct{}

type vmiSpec struct {
	Architecture     string  `json:"architecture,omitempty"`
	Domain           domain  `json:"domain"`
	EvictionStrategy *string `json:"evictionStrategy,omitempty"`
	Networks         []struct {
		named `json:",inline"`
		Pod   *empty `json:"pod,omitempty"`
	} `json:"networks,omitempty"`
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	Volumes                       []struct {
		named                 `json:",inline"`
		PersistentVolumeClaim *struct {
			ClaimName string `json:"claimName"`
		} `json:"persistentVolumeClaim,omitempty"`
	} `json:"volumes,omitempty"`
}

type domain struct {
	CPU *struct {
		Cores   uint32 `json:"cores,omitempty"`
		Model   string `json:"model,omitempty"`
		Sockets uint32 `json:"sockets,omitempty"`
		Threads uint32 `json:"threads,omitempty"`
	} `json:"cpu,omitempty"`
	Devices struct {
		Interfaces []struct {
			named      `json:",inline"`
			Masquerade *empty `json:"masquerade,omitempty"`
		} `json:"interfaces,omitempty"`
		Disks []struct {
			named     `json:",inline"`
			BootOrder *uint `json:"bootOrder,omitempty"`
			Disk      *struct {
				Bus string `json:"bus,omitempty"`
			} `json:"disk,omitempty"`
			Serial string `json:"serial,omitempty"`
		} `json:"disks,omitempty"`
	} `json:"devices"`
	Machine *struct {
		Type string `json:"type"`
	} `json:"machine,omitempty"`
	Memory *struct {
		Guest *resource.Quantity `json:"guest,omitempty"`
	} `json:"memory,omitempty"`
	Resources struct {
		Limits   map[string]resource.Quantity `json:"limits,omitempty"`
		Requests map[string]resource.Quantity `json:"requests,omitempty"`
	} `json:"resources,omitempty"`
}

type vmiStatus struct {
	ActivePods map[string]string `json:"activePods,omitempty"`
	Conditions []struct {
		Type               string       `json:"type"`
		Status             string       `json:"status"`
		LastProbeTime      *metav1.Time `json:"lastProbeTime,omitempty"`
		LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	} `json:"conditions,omitempty"`
	GuestOSInfo empty `json:"guestOSInfo,omitempty"`
	Interfaces  []struct {
		named            `json:",inline"`
		PodInterfaceName string `json:"podInterfaceName,omitempty"`
	} `json:"interfaces,omitempty"`
	LauncherContainerImageVersion string `json:"launcherContainerImageVersion,omitempty"`
	Memory                        *struct {
		MemoryOverhead *resource.Quantity `json:"memoryOverhead,omitempty"`
	} `json:"memory,omitempty"`
	MigrationMethod           string `json:"migrationMethod,omitempty"`
	MigrationTransport        string `json:"migrationTransport,omitempty"`
	NodeName                  string `json:"nodeName,omitempty"`
	Phase                     string `json:"phase,omitempty"`
	PhaseTransitionTimestamps []struct {
		Phase                    string      `json:"phase,omitempty"`
		PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
	} `json:"phaseTransitionTimestamps,omitempty"`
	QOSClass       *string `json:"qosClass,omitempty"`
	RuntimeUser    uint64  `json:"runtimeUser"`
	SelinuxContext string  `json:"selinuxContext,omitempty"`
	VolumeStatus   []struct {
		named                     `json:",inline"`
		Target                    string `json:"target"`
		PersistentVolumeClaimInfo *struct {
			ClaimName   string                       `json:"claimName,omitempty"`
			AccessModes []string                     `json:"accessModes,omitempty"`
			Capacity    map[string]resource.Quantity `json:"capacity,omitempty"`
		} `json:"persistentVolumeClaimInfo,omitempty"`
	} `json:"volumeStatus,omitempty"`
}

// DeepCopyObject is never called by a reflector or a store.
func (v *VirtualMachineInstance) DeepCopyObject() runtime.Object { panic("not copied") }

// DeepCopyObject is never called by a reflector or a store.
func (v *VirtualMachineInstanceList) DeepCopyObject() runtime.Object { panic("not copied") }
