"""Harvester's `template` controller: numbers the versions of a VM template and keeps the template's status.

Behaviour and names of harvester/harvester, pkg/controller/master/template (register.go, template_controller.go,
template_version_controller.go, vm_image_controller.go), written anew. `python -m examples.template` runs it.
"""
